"""MirrorMaker: its status from its workers' reports; pure. rules.py says whether it may mirror."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from ...models import Lag, MirrorMaker, MirrorMakerStatus, MirrorSourceStatus
from ...models.conditions import ConditionType, Reason
from ...models.mirror import Rate, SetAside
from ...models.mirror_reports import GapReport, SourceReport, WorkerLag, WorkerRate, WorkerReport, Workers
from ...models.problem import NewCondition, Problem, condition_before, conditions_with, shown
from ...models.words import count_of
from ...resources.mirror import selector
from . import diverged_records
from .promotion import Promotion
from .promotion_conditions import promoted_before, ready

OF_WORKERS = (ConditionType.SOURCE_REACHABLE, ConditionType.CAUGHT_UP, ConditionType.DEGRADED)
"""The conditions that only workers' reports tell."""
CAUGHT_UP_S = 10  # a mirror that is never further behind than this is caught up while records keep arriving
SHOWN_ERROR = 1024
MOST_NAMED = 5  # gaps or topics in a message
SCALED_TO_ZERO = "spec.replicas is 0: the mirror is scaled to zero"
NOT_TRIED = (Reason.WORKERS_STARTING, "no worker has tried yet")
REASONS = {
    "CredentialsMissing": Reason.CREDENTIALS_MISSING,
    "TlsFailed": Reason.TLS_FAILED,
    "AuthenticationFailed": Reason.AUTHENTICATION_FAILED,
}
"""Workers' reasons why a cluster is not reachable; without one, it does not respond."""
PROBLEMS = {
    "NameTaken": Reason.NAME_TAKEN,
    "Diverged": Reason.DIVERGED,
    "BatchNotMirrored": Reason.BATCH_NOT_MIRRORED,
    "RecordTooLarge": Reason.RECORD_TOO_LARGE,
    "TopicRefused": Reason.TOPIC_REFUSED,
    "MirroredTwice": Reason.MIRRORED_TWICE,
    "MirrorLoop": Reason.MIRROR_LOOP,
    "PartitionWaiting": Reason.PARTITION_WAITING,
}
"""A condition has one reason: that of the first problem in this order."""
REJOINING = "Rejoining"
"""A worker's reason for a topic that is not a replica yet (`spec.rejoin`), so its lag is unknown."""
NOT_READY = frozenset((Reason.STOPPED_AT_GAP, Reason.TOPIC_REPLACED, *PROBLEMS.values()))
"""The reasons for which a degraded mirror is also not ready."""


def status_of(
    mirror: MirrorMaker, workers: Workers, now: datetime, promotion: Promotion | None = None
) -> MirrorMakerStatus:
    """The status, summed up from the workers' reports."""
    promotion = promotion or Promotion(mirror, mirror.status.last_promotion)
    promoted = {name for report in workers.reports for source in report.sources for name in source.promoted}
    condition = promotion.condition or (None if promotion.mirror.spec.promote else promoted_before(promoted))
    of_sources = {source.name: _of_source(source.name, workers.reports) for source in mirror.spec.sources}
    why_unknown = {
        name: workers.silence or _unknown_lag(name, reports) for name, reports in of_sources.items()
    }
    reporting = () if workers.silent else {name for name, reports in of_sources.items() if reports}
    kept = diverged_records.kept(mirror, reporting, promoted)
    sources = tuple(
        _source(name, reports, why_unknown[name], kept.get(name, ())) for name, reports in of_sources.items()
    )
    unknown = next(filter(None, why_unknown.values()), "")
    lag = None if unknown else _sum(report.lag for report in workers.reports)
    nobody = _without_reports(mirror, workers)
    degraded = _degraded(mirror, workers, nobody)
    reached = _reachable(sources, workers.reports, nobody)
    of_workers = (reached, _caught_up(lag, unknown, reached, workers.reports, nobody), degraded)
    warning = None if promotion.is_over else _unmatched(mirror, workers.reports)
    conditions = conditions_with(
        mirror,
        *(() if promotion.is_over else of_workers),
        *((warning,) if warning else ()),
        *((condition,) if condition else ()),
        ready(promotion, promoted) or _ready(mirror, workers, sources, reached, degraded),
        now=now,
        without=(
            *(OF_WORKERS if promotion.is_over else ()),
            *(() if condition else (ConditionType.PROMOTED,)),
            *(() if warning else (ConditionType.WARNING,)),
        ),
    )
    return MirrorMakerStatus(
        observed_generation=mirror.metadata.generation,
        replicas=workers.replicas,
        ready_replicas=workers.ready,
        selector=",".join(f"{key}={value}" for key, value in selector(mirror).items()),
        topics=sum(source.topics or 0 for source in sources) if workers.reports else None,
        lag=lag,
        sources=sources,
        last_promotion=promotion.last,
        conditions=conditions,
    )


def refused_status(
    mirror: MirrorMaker,
    problem: Problem,
    now: datetime,
    promotion: Promotion | None = None,
    *,
    ending: int | None = None,
) -> MirrorMakerStatus:
    """The status of a MirrorMaker without workers, or whose workers continue with their former configuration.

    Their last reports about sources may no longer hold. ``ending``: how many of them are left, if they are to end; then
    nothing is known about a source.
    """
    unknown = "not known: " + problem.message
    promotion = promotion or Promotion(mirror, mirror.status.last_promotion)
    condition = promotion.condition
    return msgspec.structs.replace(
        mirror.status if ending is None else _without_workers(mirror, ending),
        observed_generation=mirror.metadata.generation,
        last_promotion=promotion.last,
        conditions=conditions_with(
            mirror,
            *((condition,) if condition else ()),
            (ConditionType.READY, False, problem.reason, problem.message),
            *((kind, None, problem.reason, unknown) for kind in OF_WORKERS),
            now=now,
            without=() if condition else (ConditionType.PROMOTED,),
        ),
    )


def _without_workers(mirror: MirrorMaker, ending: int) -> MirrorMakerStatus:
    kept = diverged_records.kept(mirror, (), ())
    sources = tuple(
        MirrorSourceStatus(name=source.name, set_aside=kept.get(source.name) or None)
        for source in mirror.spec.sources
    )
    return msgspec.structs.replace(
        mirror.status, replicas=ending, ready_replicas=0, topics=None, lag=None, sources=sources
    )


def _of_source(name: str, reports: Iterable[WorkerReport]) -> list[SourceReport]:
    """What the workers report about one source."""
    return [source for report in reports for source in report.sources if source.name == name]


def _unknown_topics(name: str, reports: Sequence[SourceReport]) -> str:
    """Why nobody knows yet which topics of a source to mirror; empty if a worker knows it."""
    if any(source.wanted is not None for source in reports):  # a number, or the report of an older release
        return ""
    return f"no worker knows the topics of {name} yet"


def _unknown_lag(name: str, reports: Sequence[SourceReport]) -> str:
    """Why nobody knows yet how far the mirror is behind a source; empty if the workers know it together."""
    if unknown := _unknown_topics(name, reports):
        return unknown
    wanted = max((source.wanted for source in reports if isinstance(source.wanted, int)), default=0)
    error = next((f": {source.last_error[:SHOWN_ERROR]}" for source in reports if source.last_error), "")
    if (held := sum(source.partitions for source in reports)) < wanted:
        return f"workers have taken {held} of {wanted} partitions of {name}{error}"
    if starting := sum(source.starting for source in reports):
        return f"workers have yet to read from {count_of(starting, 'partition')} of {name}{error}"
    return ""


def _source(
    name: str, reports: Sequence[SourceReport], unknown: str, kept: Sequence[SetAside]
) -> MirrorSourceStatus:
    """Workers share a source's partitions: lags add up, and one worker's problem is the source's.

    ``unknown``: why its lag is not known. ``kept``: what was set aside before, and stays unless a worker reports anew.
    """
    if not reports:
        return MirrorSourceStatus(name=name, set_aside=tuple(kept) or None)
    errors = [source.last_error for source in reports if source.last_error]
    gone = [source for source in reports if not source.reachable]  # without an error: not tried yet
    return MirrorSourceStatus(
        name=name,
        reachable=None
        if gone and not any(source.reason or source.last_error for source in gone)
        else not gone,
        topics=_topics(reports),
        groups=max((source.groups for source in reports if source.groups is not None), default=None),
        lag=None if unknown else _sum(source.lag for source in reports),
        rate=_rate(source.rate for source in reports),
        set_aside=diverged_records.merged(kept, (rows for source in reports for rows in source.set_aside)),
        last_error=errors[0][:SHOWN_ERROR] if errors else "",
    )


def _sum(lags: Iterable[WorkerLag]) -> Lag | None:
    known = list(lags)
    if not known:
        return None
    return Lag(
        records=sum(lag.records for lag in known), seconds=math.ceil(max(lag.seconds for lag in known))
    )


def _rate(rates: Iterable[WorkerRate]) -> Rate:
    known = [rate for rate in rates if math.isfinite(rate.records + rate.bytes)]
    return Rate(
        records=max(0, round(sum(rate.records for rate in known))),
        bytes=max(0, round(sum(rate.bytes for rate in known))),
    )


def _topics(reports: Sequence[SourceReport]) -> int:
    """Workers share partitions, not topics: several may have one topic."""
    names = [source.topic_names for source in reports]
    if any(name is None for name in names):
        return max(source.topics for source in reports)
    return len({name for source in names for name in source or ()})


Why = tuple[Reason, str]


def _without_reports(mirror: MirrorMaker, workers: Workers) -> Why | None:
    """Why no worker reports; None if one does."""
    if workers.reports:
        return None
    if mirror.spec.replicas == 0 and not workers.silent:
        return Reason.NO_WORKERS, SCALED_TO_ZERO
    return Reason.WORKERS_STARTING, workers.silence or "no worker has reported yet"


def _reachable(
    sources: Sequence[MirrorSourceStatus], reports: Iterable[WorkerReport], nobody: Why | None
) -> NewCondition:
    gone = [source for source in sources if source.reachable is False]
    if gone:
        message = "; ".join(f"{source.name}: {source.last_error or 'does not answer'}" for source in gone)
        words = [one.reason for report in reports for one in report.sources if not one.reachable]
        reason = next((REASONS[word] for word in words if word in REASONS), Reason.SOURCE_UNREACHABLE)
        return ConditionType.SOURCE_REACHABLE, False, reason, message
    if any(source.reachable is None for source in sources):
        return ConditionType.SOURCE_REACHABLE, None, *(nobody or NOT_TRIED)
    names = ", ".join(source.name for source in sources)
    return ConditionType.SOURCE_REACHABLE, True, Reason.SOURCES_REACHABLE, f"{names} answered"


def _caught_up(
    lag: Lag | None, unknown: str, reached: NewCondition, reports: Sequence[WorkerReport], nobody: Why | None
) -> NewCondition:
    if nobody:
        return ConditionType.CAUGHT_UP, None, *nobody
    _, reachable, reason, message = reached
    if reachable is False:
        return ConditionType.CAUGHT_UP, None, reason, message
    if rejoining := _said(reports, REJOINING):
        return ConditionType.CAUGHT_UP, False, Reason.REJOINING, rejoining
    if diverged := _said(
        reports, "Diverged"
    ):  # its lag says nothing about the records that source and target share
        return ConditionType.CAUGHT_UP, False, Reason.DIVERGED, diverged
    if lag is None:
        return ConditionType.CAUGHT_UP, None, Reason.WORKERS_STARTING, unknown
    if new := sum(source.new for report in reports for source in report.sources):
        words = f"{count_of(new, 'partition')} {'has' if new == 1 else 'have'} not been caught up yet"
        return ConditionType.CAUGHT_UP, False, Reason.BEHIND, words
    records, seconds = lag.records or 0, lag.seconds or 0
    if records and seconds > CAUGHT_UP_S:
        return ConditionType.CAUGHT_UP, False, Reason.BEHIND, f"more than {CAUGHT_UP_S} seconds behind"
    return ConditionType.CAUGHT_UP, True, Reason.CAUGHT_UP, f"at most {CAUGHT_UP_S} seconds behind"


def _degraded(mirror: MirrorMaker, workers: Workers, nobody: Why | None) -> NewCondition:
    """While a worker is silent, its problems are those that are known: an alert must not end and begin again."""
    if found := list(_degradations(workers.reports)):
        return ConditionType.DEGRADED, True, found[0][0], "; also: ".join(message for _, message in found)
    if workers.silent and (before := condition_before(mirror, ConditionType.DEGRADED)):
        return before
    if nobody:
        return ConditionType.DEGRADED, None, *nobody
    if workers.silent:
        return ConditionType.DEGRADED, None, Reason.WORKERS_STARTING, workers.silence
    nothing = "no record was deleted before it was mirrored"
    return ConditionType.DEGRADED, False, Reason.NOTHING_MISSING, nothing


def _degradations(reports: Sequence[WorkerReport]) -> Iterator[tuple[Reason, str]]:
    """The reason and message of each problem; the worst first."""
    replaced = sorted(
        {
            f"{topic} of {source.name}"
            for report in reports
            for source in report.sources
            for topic in source.replaced
        }
    )
    if replaced:
        message = (
            f"deleted and created again in the source: {shown(replaced, MOST_NAMED)}; nothing is appended to the old"
            " topic's copy: delete the copy in the target to mirror the new topic, or add the topic to"
            " spec.topics.exclude"
        )
        yield Reason.TOPIC_REPLACED, message
    gaps = [(source.name, gap) for report in reports for source in report.sources for gap in source.gaps]
    stopped = [one for one in gaps if one[1].stopped]
    if stopped:
        message = (
            f"{_listed(stopped)} before they were mirrored; mirroring of these partitions stopped: set spec.onGap:"
            " SkipToEarliest to continue with the remaining records"
        )
        yield Reason.STOPPED_AT_GAP, message
    for word, reason in PROBLEMS.items():
        if found := _said(reports, word):
            yield reason, found
    if passed := [one for one in gaps if not one[1].stopped]:
        message = f"{_listed(passed)} before they were mirrored, in the last 24 hours: raise retention there"
        yield Reason.RECORDS_MISSING, message


def _said(reports: Iterable[WorkerReport], word: str) -> str:
    """The workers' problems with this reason, in words; empty if there are none."""
    problems = [problem for report in reports for source in report.sources for problem in source.problems]
    found = {problem.message[:SHOWN_ERROR] for problem in problems if problem.reason == word}
    return shown(sorted(found), MOST_NAMED) if found else ""


def _listed(gaps: Sequence[tuple[str, GapReport]]) -> str:
    named = [
        f"{name} deleted offsets {gap.first} to {gap.until - 1} of {gap.partition}" for name, gap in gaps
    ]
    return shown(named, MOST_NAMED)


def _ready(
    mirror: MirrorMaker,
    workers: Workers,
    sources: Sequence[MirrorSourceStatus],
    reached: NewCondition,
    degraded: NewCondition,
) -> NewCondition:
    wanted = mirror.spec.replicas
    if wanted == 0:
        return ConditionType.READY, False, Reason.NO_WORKERS, SCALED_TO_ZERO
    _, reachable, reason, message = reached
    if reachable is False:
        return ConditionType.READY, False, reason, message
    for report in workers.reports:
        if not report.target.reachable and report.target.last_error:  # no error: not tried yet
            reason = REASONS.get(report.target.reason, Reason.TARGET_UNREACHABLE)
            message = f"target: {report.target.last_error[:SHOWN_ERROR]}"
            return ConditionType.READY, False, reason, message
    is_updated = workers.updated is None or workers.updated >= wanted
    if (workers.ready < wanted or not is_updated or not workers.reports) and workers.failure:
        return ConditionType.READY, False, Reason.WORKER_FAILED, workers.failure
    why = f": {workers.waiting}" if workers.waiting else ""
    if workers.ready >= wanted and not is_updated:
        message = f"{workers.updated} of {wanted} workers have the present spec{why}"
        return ConditionType.READY, False, Reason.WORKERS_STARTING, message
    if workers.ready < wanted:
        message = f"{workers.ready} of {wanted} workers are ready{why}"
        return ConditionType.READY, False, Reason.WORKERS_STARTING, message
    _, _, reason, message = degraded
    if reason in NOT_READY:
        return ConditionType.READY, False, reason, message
    if not workers.reports:
        message = workers.silence or f"no worker with the present spec has reported yet{why}"
        return ConditionType.READY, False, Reason.WORKERS_STARTING, message
    if rejoining := _said(workers.reports, REJOINING):
        return ConditionType.READY, False, Reason.REJOINING, rejoining
    before = condition_before(mirror, ConditionType.READY)
    if workers.silent and mirror.spec.rejoin and not (before and before[1]):
        # The topics of a silent worker may not be replicas yet.
        if before and before[2] is Reason.REJOINING:
            return before
        return ConditionType.READY, False, Reason.WORKERS_STARTING, workers.silence
    for source in mirror.spec.sources:
        if unknown := _unknown_topics(source.name, _of_source(source.name, workers.reports)):
            return ConditionType.READY, False, Reason.WORKERS_STARTING, unknown
    if nothing := _without_topics(mirror, workers.reports):
        return ConditionType.READY, True, Reason.NO_TOPICS, nothing
    topics = sum(source.topics or 0 for source in sources)
    words = (
        f"{count_of(wanted, 'worker')} {'mirrors' if wanted == 1 else 'mirror'} {count_of(topics, 'topic')}"
    )
    return ConditionType.READY, True, Reason.MIRRORING, words


def knows_topics(mirror: MirrorMaker, reports: Sequence[WorkerReport]) -> bool:
    """Whether the workers have listed the topics and groups of every source, or report why they cannot."""
    return all(
        any(
            (one.matched is not None and (one.unmatched_groups is not None or not _selects_groups(mirror)))
            or one.last_error
            or one.reason
            for one in _of_source(source.name, reports)
        )
        for source in mirror.spec.sources
    )


def _selects_groups(mirror: MirrorMaker) -> bool:
    return bool(mirror.spec.groups and mirror.spec.groups.include)


def _unmatched(mirror: MirrorMaker, reports: Sequence[WorkerReport]) -> NewCondition | None:
    """The patterns that select no topic of any source, if others select some (else the mirror has no topics), and those
    that select no group."""
    by_source = [_of_source(source.name, reports) for source in mirror.spec.sources]
    topics = [[one for one in of_source if one.matched is not None] for of_source in by_source]
    groups = [
        [set(one.unmatched_groups) for one in of_source if one.unmatched_groups is not None]
        for of_source in by_source
    ]
    if not all(topics):
        before = (
            condition
            for condition in mirror.status.conditions or ()
            if condition.type == ConditionType.WARNING.value
        )
        is_present = any(one.observed_generation == mirror.metadata.generation for one in before)
        return condition_before(mirror, ConditionType.WARNING) if is_present else None
    selections = [one for of_source in topics for one in of_source]
    unmatched: dict[str, set[str]] = {}
    if any(selection.matched for selection in selections):
        unmatched["topic"] = set.intersection(*(set(selection.unmatched) for selection in selections))
    if _selects_groups(mirror) and all(groups):
        unmatched["group"] = set.intersection(*(found for of_source in groups for found in of_source))
    sources = ", ".join(source.name for source in mirror.spec.sources)
    words = []
    for kind, patterns in unmatched.items():
        if patterns:
            named = shown(sorted(f'"{pattern}"' for pattern in patterns), MOST_NAMED)
            verb = "matches" if len(patterns) == 1 else "match"
            words.append(f"spec.{kind}s.include: {named} {verb} no {kind} of {sources}")
    if not words:
        return None
    message = f"{'; '.join(words)}; patterns match whole names"
    return ConditionType.WARNING, True, Reason.PATTERN_UNMATCHED, message


def _without_topics(mirror: MirrorMaker, reports: Sequence[WorkerReport]) -> str:
    """The sources without a topic that the patterns select, in words."""
    empty = []
    for source in mirror.spec.sources:
        matched = [one.matched for one in _of_source(source.name, reports)]
        if matched and all(number == 0 for number in matched):
            empty.append(source.name)
    if not empty:
        return ""
    return (
        f"no topic of {shown(empty, MOST_NAMED)} matches spec.topics: the mirror waits for such topics; patterns match"
        " whole names"
    )
