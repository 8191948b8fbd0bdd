"""MirrorMaker: whether it may mirror, and its status from its workers' reports; pure.

Records that return to their origin would be copied endlessly, and a cluster mirrored twice would duplicate its
records. So a MirrorMaker is refused before a worker runs if a source is the target, if two sources are one cluster, or
if it closes a loop with older ones for the same topics (see overlap.py). Two references mean one cluster
if they name the same Cluster, or if they share an address of `bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from ..conditions import ConditionType, Reason
from ..models import Lag, MirrorMaker, MirrorMakerStatus, MirrorPatterns, MirrorSourceStatus
from ..models.mirror import MirrorTarget, Rate, SetAside
from ..overlap import Names, Shared, shared
from ..resources.mirror import Endpoint, selector
from .problem import Problem, conditions_with, shown
from .promotion import Promotion, promoted_before, ready

CAUGHT_UP_S = 10  # a mirror that is never further behind than this is caught up while records keep arriving
SHOWN_ERROR = 1024
SHOWN_SET_ASIDE = 100
MOST_NAMED = 5  # gaps or topics in a message
REASONS = {
    "CredentialsMissing": Reason.CREDENTIALS_MISSING,
    "TlsFailed": Reason.TLS_FAILED,
    "AuthenticationFailed": Reason.AUTHENTICATION_FAILED,
}
"""Workers' reasons why a cluster is not reachable; without one, it does not respond."""
PROBLEMS = {
    "Diverged": Reason.DIVERGED,
    "BatchNotMirrored": Reason.BATCH_NOT_MIRRORED,
    "RecordTooLarge": Reason.RECORD_TOO_LARGE,
    "TopicRefused": Reason.TOPIC_REFUSED,
    "MirroredTwice": Reason.MIRRORED_TWICE,
    "MirrorLoop": Reason.MIRROR_LOOP,
}
"""A condition has one reason: that of the first problem in this order."""
REJOINING = "Rejoining"
"""A worker's reason for a topic that is not a replica yet (`spec.rejoin`), so its lag is unknown."""
NOT_READY = frozenset((Reason.STOPPED_AT_GAP, Reason.TOPIC_REPLACED, *PROBLEMS.values()))
"""The reasons for which a degraded mirror is also not ready."""
MOST_WAYS = 1000  # paths searched for a loop


class WorkerLag(msgspec.Struct, frozen=True):
    records: int = 0
    seconds: float = 0.0


class GapReport(msgspec.Struct, frozen=True, rename={"first": "from"}):
    """Offsets of a source's partition that the target lacks: from ``first`` to before ``until``."""

    partition: str
    first: int
    until: int
    stopped: bool


class ProblemReport(msgspec.Struct, frozen=True):
    """Why part of the desired records is not mirrored; ``reason`` is a key of ``PROBLEMS``, or ``REJOINING``."""

    reason: str = ""
    message: str = ""


class WorkerRate(msgspec.Struct, frozen=True):
    """Records and bytes a second, over the last ten."""

    records: float = 0.0
    bytes: float = 0.0


class SourceReport(msgspec.Struct, frozen=True, rename="camel"):
    """One worker's report about one source."""

    name: str
    reachable: bool = False
    topics: int = 0
    topic_names: tuple[str, ...] | None = None
    lag: WorkerLag = WorkerLag()
    last_error: str = ""
    groups: int | None = None
    gaps: tuple[GapReport, ...] = ()
    replaced: tuple[str, ...] = ()
    """Topics that were deleted and created again in the source."""
    reason: str = ""
    """The reason why it is not reachable: a key of ``REASONS``."""
    problems: tuple[ProblemReport, ...] = ()
    matched: int | None = None
    """Topics that the patterns select; None before the first look."""
    rate: WorkerRate = WorkerRate()
    set_aside: tuple[SetAside, ...] = ()
    promoted: tuple[str, ...] = ()
    """Topics of the target that the mirror left alone because they were promoted."""
    seen_ms: int = 0
    """Time up to which the worker knew the ends of all its partitions in the source."""


class TargetReport(msgspec.Struct, frozen=True, rename="camel"):
    reachable: bool = True
    reason: str = ""
    last_error: str = ""


class WorkerReport(msgspec.Struct, frozen=True, rename="camel"):
    """One worker's response to GET /status: its share of the partitions, and their topics."""

    topics: int = 0
    lag: WorkerLag = WorkerLag()
    sources: tuple[SourceReport, ...] = ()
    target: TargetReport = TargetReport()


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers: their number, how many are ready, the reports of those that responded, and why one ended."""

    replicas: int = 0
    ready: int = 0
    reports: tuple[WorkerReport, ...] = ()
    failure: str = ""


def same_cluster(one: Endpoint, other: Endpoint) -> bool:
    if one.cluster is not None and one.cluster == other.cluster:
        return True
    return not _addresses(one).isdisjoint(_addresses(other))


def _addresses(endpoint: Endpoint) -> set[str]:
    """HOST:PORT in every possible spelling."""
    found = set()
    for address in endpoint.bootstrap.lower().split(","):
        host, _, port = address.strip().rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.removesuffix(".").removesuffix(".cluster.local")
        found.add(f"{host.removesuffix('.svc')}:{port}")
    return found


def check(mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint) -> Problem | None:
    """Why this MirrorMaker would copy records in a loop or duplicate them."""
    for index, source in enumerate(sources):
        for other in sources[:index]:
            if same_cluster(source, other):
                return Problem(
                    Reason.SAME_CLUSTER,
                    f"spec.sources: {other.name} and {source.name} are one cluster ({source.bootstrap}): "
                    "every record would be mirrored twice; list it once",
                )
        if not same_cluster(source, target):
            continue
        if mirror.spec.naming == "Same":
            return Problem(
                Reason.SAME_CLUSTER,
                f"spec.target: is the source {source.name} ({target.bootstrap}): with naming Same a topic would be "
                "mirrored into itself; allowed: another cluster, or naming Prefixed",
            )
        prefix = f"{source.name}."
        topics = mirror.spec.topics
        if (found := shared(frozenset({_names(topics, ""), _names(topics, prefix)}))) is not None:
            why = f" ({prefix}{found.name})" if found.name else f": {found.why}"
            return Problem(
                Reason.SAME_CLUSTER,
                f"spec.topics.include: may take the mirrored topics again, since source {source.name} is the target"
                f"{why}; add {source.name}[.].* to spec.topics.exclude",
            )
    return None


Mirrored = tuple[MirrorMaker, Sequence[Endpoint], Endpoint]


def check_loop(
    mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint, others: Iterable[Mirrored]
) -> Problem | None:
    """Whether older MirrorMakers bring the same topics back from the target to a source. The older ones continue."""
    older = [one for one in others if _age(one[0]) < _age(mirror)]
    for source in sources:
        if (circle := _circle(mirror, source, target, older)) is None:
            continue
        names = " and ".join(f"{one.name} in namespace {one.namespace}" for one in circle.way)
        subject = f"MirrorMaker {names} mirrors" if len(circle.way) == 1 else f"MirrorMakers {names} mirror"
        if circle.shared.name is None:
            return Problem(
                Reason.MIRROR_LOOP,
                f"spec.topics: {subject} from the target to {source.name}, perhaps the same topics, which would loop: "
                f"{circle.shared.why}; list the names in include, or use only [a-z], (a|b), . and * + ?",
            )
        return Problem(
            Reason.MIRROR_LOOP,
            f"spec.topics: {subject} the same topics from the target to {source.name} (such as "
            f"{circle.shared.name}): records would loop; {circle.remedy}",
        )
    return None


@dataclass(frozen=True, slots=True)
class _Circle:
    """``way`` are the mirrors that bring records back from the target to the source."""

    way: tuple[MirrorMaker, ...]
    shared: Shared
    remedy: str


def _circle(
    mirror: MirrorMaker, source: Endpoint, target: Endpoint, others: Sequence[Mirrored]
) -> _Circle | None:
    """The shortest loop that a MirrorMaker closes.

    With naming Prefixed each round creates topics of another name; the workers themselves detect a loop of two
    clusters.
    """
    first = frozenset({_names(mirror.spec.topics, "")})
    prefix = _prefix(mirror, source)
    ways: list[tuple[tuple[Endpoint, ...], tuple[MirrorMaker, ...], frozenset[Names], str]] = [
        ((target,), (), first, prefix)
    ]
    seen = set()
    for places, way, names, prefix in ways:  # it grows meanwhile: shortest first
        for one, sources, end in others:
            for begin in sources:
                if not same_cluster(begin, places[-1]) or any(same_cluster(end, place) for place in places):
                    continue
                together = names | {_names(one.spec.topics, prefix)}
                after = _prefix(one, begin) + prefix
                closed = same_cluster(end, source)
                if closed and after:
                    if not way:
                        continue
                    together |= {_names(mirror.spec.topics, after)}
                key = (end.cluster, end.bootstrap, frozenset(map(_place, places)), together, after)
                if key in seen or (found := shared(together)) is None:
                    continue
                seen.add(key)
                if closed:
                    remedy = (
                        f"add {after.replace('.', '[.]')}.* to spec.topics.exclude"
                        if after
                        else "allowed: other topics, or naming Prefixed"
                    )
                    return _Circle((*way, one), found, remedy)
                if len(seen) > MOST_WAYS:
                    return _Circle((*way, one), Shared(None, "there are too many ways between them"), "")
                ways.append(((*places, end), (*way, one), together, after))
    return None


def _place(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.cluster or "", endpoint.bootstrap


def _prefix(mirror: MirrorMaker, source: Endpoint) -> str:
    """The prefix that its workers put before the names of this source's topics."""
    return "" if mirror.spec.naming == "Same" else f"{source.name}."


def _names(topics: MirrorPatterns, prefix: str) -> Names:
    return Names(topics.include, topics.exclude, prefix)


def _age(mirror: MirrorMaker) -> tuple[str, str]:
    return mirror.metadata.creation_timestamp, mirror.metadata.uid


def status_of(
    mirror: MirrorMaker, workers: Workers, now: datetime, promotion: Promotion | None = None
) -> MirrorMakerStatus:
    """The status, summed up from the workers' reports."""
    promotion = promotion or Promotion(mirror, mirror.status.last_promotion)
    promoted = {name for report in workers.reports for source in report.sources for name in source.promoted}
    told = promotion.told or (None if promotion.mirror.spec.promote else promoted_before(promoted))
    sources = tuple(_source(source.name, workers.reports) for source in mirror.spec.sources)
    lag = _sum(report.lag for report in workers.reports)
    degraded = _degraded(workers.reports)
    of_workers = (_reachable(sources, workers.reports), _caught_up(lag, workers.reports), degraded)
    conditions = conditions_with(
        mirror,
        *(() if promotion.is_over else of_workers),
        *((told,) if told else ()),
        ready(promotion, promoted) or _ready(mirror, workers, sources, degraded),
        now=now,
        without=(
            *((one[0] for one in of_workers) if promotion.is_over else ()),
            *(() if told else (ConditionType.PROMOTED,)),
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
    mirror: MirrorMaker, problem: Problem, now: datetime, promotion: Promotion | None = None
) -> MirrorMakerStatus:
    """The status of a MirrorMaker without workers, or whose workers continue with their former configuration.

    Their last reports about sources may no longer hold.
    """
    unknown = "not known: " + problem.message
    promotion = promotion or Promotion(mirror, mirror.status.last_promotion)
    told = promotion.told
    return msgspec.structs.replace(
        mirror.status,
        observed_generation=mirror.metadata.generation,
        last_promotion=promotion.last,
        conditions=conditions_with(
            mirror,
            *((told,) if told else ()),
            (ConditionType.READY, False, problem.reason, problem.message),
            (ConditionType.SOURCE_REACHABLE, None, problem.reason, unknown),
            (ConditionType.CAUGHT_UP, None, problem.reason, unknown),
            (ConditionType.DEGRADED, None, problem.reason, unknown),
            now=now,
            without=() if told else (ConditionType.PROMOTED,),
        ),
    )


def _source(name: str, reports: Iterable[WorkerReport]) -> MirrorSourceStatus:
    """Workers share a source's partitions: lags add up, and one worker's problem is the source's."""
    said = [source for report in reports for source in report.sources if source.name == name]
    if not said:
        return MirrorSourceStatus(name=name)
    errors = [source.last_error for source in said if source.last_error]
    return MirrorSourceStatus(
        name=name,
        reachable=all(source.reachable for source in said),
        topics=_topics(said),
        groups=max((source.groups for source in said if source.groups is not None), default=None),
        lag=_sum(source.lag for source in said),
        rate=_rate(source.rate for source in said),
        set_aside=_set_aside(said),
        last_error=errors[0][:SHOWN_ERROR] if errors else "",
    )


def _set_aside(said: Sequence[SourceReport]) -> tuple[SetAside, ...] | None:
    """The reports of the worker that leads the group; two may believe for a moment that they do."""
    found = {(one.topic, one.partition): one for source in said for one in source.set_aside}
    return tuple(one for _, one in sorted(found.items()))[:SHOWN_SET_ASIDE] or None


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


def _topics(said: Sequence[SourceReport]) -> int:
    """Workers share partitions, not topics: several may have one topic."""
    names = [source.topic_names for source in said]
    if any(name is None for name in names):
        return max(source.topics for source in said)
    return len({name for source in names for name in source or ()})


Told = tuple[ConditionType, bool | None, Reason, str]


def _reachable(sources: Sequence[MirrorSourceStatus], reports: Iterable[WorkerReport]) -> Told:
    gone = [source for source in sources if source.reachable is False]
    if gone:
        message = "; ".join(f"{source.name}: {source.last_error or 'does not answer'}" for source in gone)
        words = [one.reason for report in reports for one in report.sources if not one.reachable]
        reason = next((REASONS[word] for word in words if word in REASONS), Reason.SOURCE_UNREACHABLE)
        return ConditionType.SOURCE_REACHABLE, False, reason, message
    if any(source.reachable is None for source in sources):
        message = "no worker has reported yet"
        return ConditionType.SOURCE_REACHABLE, None, Reason.WORKERS_STARTING, message
    names = ", ".join(source.name for source in sources)
    return ConditionType.SOURCE_REACHABLE, True, Reason.SOURCES_REACHABLE, f"{names} answered"


def _caught_up(lag: Lag | None, reports: Iterable[WorkerReport]) -> Told:
    if lag is None:
        return ConditionType.CAUGHT_UP, None, Reason.WORKERS_STARTING, "no worker has reported yet"
    if rejoining := _said(reports, REJOINING):
        return ConditionType.CAUGHT_UP, False, Reason.REJOINING, rejoining
    records, seconds = lag.records or 0, lag.seconds or 0
    if records and seconds > CAUGHT_UP_S:
        return ConditionType.CAUGHT_UP, False, Reason.BEHIND, f"more than {CAUGHT_UP_S} seconds behind"
    return ConditionType.CAUGHT_UP, True, Reason.CAUGHT_UP, f"at most {CAUGHT_UP_S} seconds behind"


def _degraded(reports: Sequence[WorkerReport]) -> Told:
    if not reports:
        return ConditionType.DEGRADED, None, Reason.WORKERS_STARTING, "no worker has reported yet"
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
        return ConditionType.DEGRADED, True, Reason.TOPIC_REPLACED, message
    gaps = [(source.name, gap) for report in reports for source in report.sources for gap in source.gaps]
    stopped = [one for one in gaps if one[1].stopped]
    if stopped:
        message = (
            f"{_listed(stopped)} before they were mirrored; mirroring of these partitions stopped: set spec.onGap:"
            " SkipToEarliest to continue with the remaining records"
        )
        return ConditionType.DEGRADED, True, Reason.STOPPED_AT_GAP, message
    for word, reason in PROBLEMS.items():
        if found := _said(reports, word):
            return ConditionType.DEGRADED, True, reason, found
    if gaps:
        message = f"{_listed(gaps)} before they were mirrored, in the last 24 hours: raise retention there"
        return ConditionType.DEGRADED, True, Reason.RECORDS_MISSING, message
    return (
        ConditionType.DEGRADED,
        False,
        Reason.NOTHING_MISSING,
        "no record was deleted before it was mirrored",
    )


def _said(reports: Iterable[WorkerReport], word: str) -> str:
    """The workers' problems with this reason, in words; empty if there are none."""
    problems = [one for report in reports for source in report.sources for one in source.problems]
    found = {one.message[:SHOWN_ERROR] for one in problems if one.reason == word}
    return shown(sorted(found), MOST_NAMED) if found else ""


def _listed(gaps: Sequence[tuple[str, GapReport]]) -> str:
    named = [
        f"{name} deleted offsets {gap.first} to {gap.until - 1} of {gap.partition}" for name, gap in gaps
    ]
    return shown(named, MOST_NAMED)


def _ready(
    mirror: MirrorMaker, workers: Workers, sources: Sequence[MirrorSourceStatus], degraded: Told
) -> Told:
    wanted = mirror.spec.replicas
    if wanted == 0:
        return (
            ConditionType.READY,
            False,
            Reason.NO_WORKERS,
            "spec.replicas is 0: the mirror is scaled to zero",
        )
    _, reachable, reason, message = _reachable(sources, workers.reports)
    if reachable is False:
        return ConditionType.READY, False, reason, message
    for report in workers.reports:
        if not report.target.reachable and report.target.last_error:  # no error: not tried yet
            reason = REASONS.get(report.target.reason, Reason.TARGET_UNREACHABLE)
            message = f"target: {report.target.last_error[:SHOWN_ERROR]}"
            return ConditionType.READY, False, reason, message
    if workers.ready < wanted and workers.failure:
        return ConditionType.READY, False, Reason.WORKER_FAILED, workers.failure
    if workers.ready < wanted or not workers.reports:
        message = f"{workers.ready} of {wanted} workers are ready"
        return ConditionType.READY, False, Reason.WORKERS_STARTING, message
    _, _, reason, message = degraded
    if reason in NOT_READY:
        return ConditionType.READY, False, reason, message
    if rejoining := _said(workers.reports, REJOINING):
        return ConditionType.READY, False, Reason.REJOINING, rejoining
    if nothing := _without_topics(mirror, workers.reports):
        return ConditionType.READY, True, Reason.NO_TOPICS, nothing
    topics = sum(source.topics or 0 for source in sources)
    words = f"{_count(wanted, 'worker')} {'mirrors' if wanted == 1 else 'mirror'} {_count(topics, 'topic')}"
    return ConditionType.READY, True, Reason.MIRRORING, words


def _without_topics(mirror: MirrorMaker, reports: Sequence[WorkerReport]) -> str:
    """The sources without a topic that the patterns select, in words."""
    empty = []
    for source in mirror.spec.sources:
        matched = [one.matched for report in reports for one in report.sources if one.name == source.name]
        if matched and all(number == 0 for number in matched):
            empty.append(source.name)
    if not empty:
        return ""
    return (
        f"no topic of {shown(empty, MOST_NAMED)} matches spec.topics: the mirror waits for such topics; patterns match"
        " whole names"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def endpoints_of(mirror: MirrorMaker, bootstraps: Mapping[str, str]) -> tuple[tuple[Endpoint, ...], Endpoint]:
    """Sources and target; the addresses of Clusters are given by "NAMESPACE/NAME"."""

    def endpoint(name: str, place: MirrorTarget) -> Endpoint:
        if (reference := place.cluster_ref) is None:
            return Endpoint(name, place.bootstrap or "", None, place.tls, place.sasl)
        key = f"{reference.namespace or mirror.namespace}/{reference.name}"
        return Endpoint(name, bootstraps[key], key)

    sources = tuple(endpoint(source.name, source) for source in mirror.spec.sources)
    return sources, endpoint("target", mirror.spec.target)
