"""MirrorMaker: may it mirror at all, and what its workers say about how far it is; pure.

Records that come back to where they came from would be copied endlessly, and a cluster mirrored twice would double its
records, so before a worker runs these are refused: a source that is the target, two sources that are one cluster, and
a MirrorMaker that closes a circle with older ones for the same topics (see overlap.py). Two references mean one cluster
if they name the same Cluster, or if they share an address of `bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from ..conditions import ConditionType, Reason
from ..models import ClusterRef, Lag, MirrorMaker, MirrorMakerStatus, MirrorPatterns, MirrorSourceStatus
from ..overlap import Names, Shared, shared
from ..resources.mirror import Endpoint, selector
from .problem import Problem, conditions_with, shown

CAUGHT_UP_S = 10  # a mirror that is never further behind than this is caught up while records keep coming
SHOWN_ERROR = 1024
MOST_NAMED = 5  # gaps or topics in a message
MOST_WAYS = 1000  # that are looked at for a circle


class WorkerLag(msgspec.Struct, frozen=True):
    records: int = 0
    seconds: float = 0.0


class GapReport(msgspec.Struct, frozen=True, rename={"first": "from"}):
    """Offsets of a source's partition that the target lacks: from ``first`` to before ``until``."""

    partition: str
    first: int
    until: int
    stopped: bool


class SourceReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one worker says about one source."""

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


class WorkerReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one worker answers to GET /status: of its share of the partitions, and of the topics they belong to."""

    topics: int = 0
    lag: WorkerLag = WorkerLag()
    sources: tuple[SourceReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers there are: how many, how many are ready, what those that answered said; why one ended, if it did."""

    replicas: int = 0
    ready: int = 0
    reports: tuple[WorkerReport, ...] = ()
    failure: str = ""


def same_cluster(one: Endpoint, other: Endpoint) -> bool:
    if one.cluster is not None and one.cluster == other.cluster:
        return True
    return not _addresses(one).isdisjoint(_addresses(other))


def _addresses(endpoint: Endpoint) -> set[str]:
    """HOST:PORT in every way that it may be written."""
    found = set()
    for address in endpoint.bootstrap.lower().split(","):
        host, _, port = address.strip().rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.removesuffix(".").removesuffix(".cluster.local")
        found.add(f"{host.removesuffix('.svc')}:{port}")
    return found


def check(mirror: MirrorMaker, sources: Sequence[Endpoint], target: Endpoint) -> Problem | None:
    """Why this MirrorMaker would copy records in a loop or double them."""
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
    """Do older MirrorMakers bring the same topics back from the target to a source? The older ones go on."""
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
    """``way``: what brings records back from the target to the source."""

    way: tuple[MirrorMaker, ...]
    shared: Shared
    remedy: str


def _circle(
    mirror: MirrorMaker, source: Endpoint, target: Endpoint, others: Sequence[Mirrored]
) -> _Circle | None:
    """The shortest circle that a MirrorMaker closes. With naming Prefixed each round makes topics of another name; if
    the circle has two clusters, the workers see that themselves."""
    first = frozenset({_names(mirror.spec.topics, "")})
    prefix = _prefix(mirror, source)
    ways: list[tuple[tuple[Endpoint, ...], tuple[MirrorMaker, ...], frozenset[Names], str]] = [
        ((target,), (), first, prefix)
    ]
    seen = set()
    for places, way, names, prefix in ways:  # grows meanwhile: shortest first
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
    """What its workers put before the names of this source's topics."""
    return "" if mirror.spec.naming == "Same" else f"{source.name}."


def _names(topics: MirrorPatterns, prefix: str) -> Names:
    return Names(topics.include, topics.exclude, prefix)


def _age(mirror: MirrorMaker) -> tuple[str, str]:
    return mirror.metadata.creation_timestamp, mirror.metadata.uid


def status_of(mirror: MirrorMaker, workers: Workers, now: datetime) -> MirrorMakerStatus:
    """What the workers say, summed up."""
    sources = tuple(_source(source.name, workers.reports) for source in mirror.spec.sources)
    lag = _sum(report.lag for report in workers.reports)
    degraded = _degraded(workers.reports)
    conditions = conditions_with(
        mirror,
        _reachable(sources),
        _caught_up(lag),
        degraded,
        _ready(mirror, workers, sources, degraded),
        now=now,
    )
    return MirrorMakerStatus(
        observed_generation=mirror.metadata.generation,
        replicas=workers.replicas,
        ready_replicas=workers.ready,
        selector=",".join(f"{key}={value}" for key, value in selector(mirror).items()),
        topics=sum(source.topics or 0 for source in sources) if workers.reports else None,
        lag=lag,
        sources=sources,
        conditions=conditions,
    )


def refused_status(mirror: MirrorMaker, problem: Problem, now: datetime) -> MirrorMakerStatus:
    """The status of one that has no workers, or whose workers go on with what they were told before. What they last
    said of their sources may not hold any more."""
    unknown = "not known: " + problem.message
    return msgspec.structs.replace(
        mirror.status,
        observed_generation=mirror.metadata.generation,
        conditions=conditions_with(
            mirror,
            (ConditionType.READY, False, problem.reason, problem.message),
            (ConditionType.SOURCE_REACHABLE, None, problem.reason, unknown),
            (ConditionType.CAUGHT_UP, None, problem.reason, unknown),
            (ConditionType.DEGRADED, None, problem.reason, unknown),
            now=now,
        ),
    )


def _source(name: str, reports: Iterable[WorkerReport]) -> MirrorSourceStatus:
    """Workers share a source's partitions: lags add up, and one in trouble is trouble."""
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
        last_error=errors[0][:SHOWN_ERROR] if errors else "",
    )


def _sum(lags: Iterable[WorkerLag]) -> Lag | None:
    known = list(lags)
    if not known:
        return None
    return Lag(
        records=sum(lag.records for lag in known), seconds=math.ceil(max(lag.seconds for lag in known))
    )


def _topics(said: Sequence[SourceReport]) -> int:
    """Workers share partitions, not topics: one topic may be with many of them."""
    names = [source.topic_names for source in said]
    if any(name is None for name in names):
        return max(source.topics for source in said)
    return len({name for source in names for name in source or ()})


Told = tuple[ConditionType, bool | None, Reason, str]


def _reachable(sources: Sequence[MirrorSourceStatus]) -> Told:
    gone = [source for source in sources if source.reachable is False]
    if gone:
        message = "; ".join(f"{source.name}: {source.last_error or 'does not answer'}" for source in gone)
        return ConditionType.SOURCE_REACHABLE, False, Reason.SOURCE_UNREACHABLE, message
    if any(source.reachable is None for source in sources):
        message = "no worker has said so far"
        return ConditionType.SOURCE_REACHABLE, None, Reason.WORKERS_STARTING, message
    names = ", ".join(source.name for source in sources)
    return ConditionType.SOURCE_REACHABLE, True, Reason.SOURCES_REACHABLE, f"{names} answered"


def _caught_up(lag: Lag | None) -> Told:
    if lag is None:
        return ConditionType.CAUGHT_UP, None, Reason.WORKERS_STARTING, "no worker has said so far"
    records, seconds = lag.records or 0, lag.seconds or 0
    if records and seconds > CAUGHT_UP_S:
        return ConditionType.CAUGHT_UP, False, Reason.BEHIND, f"more than {CAUGHT_UP_S} seconds behind"
    return ConditionType.CAUGHT_UP, True, Reason.CAUGHT_UP, f"at most {CAUGHT_UP_S} seconds behind"


def _degraded(reports: Sequence[WorkerReport]) -> Told:
    if not reports:
        return ConditionType.DEGRADED, None, Reason.WORKERS_STARTING, "no worker has said so far"
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
            " SkipToEarliest to go on with what there is"
        )
        return ConditionType.DEGRADED, True, Reason.STOPPED_AT_GAP, message
    if gaps:
        message = f"{_listed(gaps)} before they were mirrored, in the last 24 hours: raise retention there"
        return ConditionType.DEGRADED, True, Reason.RECORDS_MISSING, message
    return (
        ConditionType.DEGRADED,
        False,
        Reason.NOTHING_MISSING,
        "no record was deleted before it was mirrored",
    )


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
        return ConditionType.READY, False, Reason.NO_WORKERS, "spec.replicas: 0 asks for no workers"
    _, reachable, reason, message = _reachable(sources)
    if reachable is False:
        return ConditionType.READY, False, reason, message
    if workers.ready < wanted and workers.failure:
        return ConditionType.READY, False, Reason.WORKER_FAILED, workers.failure
    if workers.ready < wanted or not workers.reports:
        message = f"{workers.ready} of {wanted} workers are ready"
        return ConditionType.READY, False, Reason.WORKERS_STARTING, message
    _, _, reason, message = degraded
    if reason in (Reason.STOPPED_AT_GAP, Reason.TOPIC_REPLACED):
        return ConditionType.READY, False, reason, message
    topics = sum(source.topics or 0 for source in sources)
    words = f"{_count(wanted, 'worker')} {'mirrors' if wanted == 1 else 'mirror'} {_count(topics, 'topic')}"
    return ConditionType.READY, True, Reason.MIRRORING, words


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def endpoints_of(mirror: MirrorMaker, bootstraps: Mapping[str, str]) -> tuple[tuple[Endpoint, ...], Endpoint]:
    """Sources and target, given the address of each Cluster they name, by "NAMESPACE/NAME"."""

    def endpoint(name: str, reference: ClusterRef | None, bootstrap: str | None) -> Endpoint:
        if reference is None:
            return Endpoint(name, bootstrap or "")
        key = f"{reference.namespace or mirror.namespace}/{reference.name}"
        return Endpoint(name, bootstraps[key], key)

    spec = mirror.spec
    sources = tuple(endpoint(source.name, source.cluster_ref, source.bootstrap) for source in spec.sources)
    return sources, endpoint("target", spec.target.cluster_ref, spec.target.bootstrap)
