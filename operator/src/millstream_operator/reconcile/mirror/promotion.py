"""Promotion of an Identity mirror's topics: the outcome of a request, and the resulting recovery point; pure.

A promotion deletes a topic's setting ``millstream.mirror.source``: one atomic write, which cannot be undone. So it
has no step that the next operator would have to take back. The status records a request before anything is promoted,
with the ids of the topics that it names: a topic deleted and created again meanwhile is another one. The next operator
promotes those topics that are still replicas, and finds the others promoted. The status may be lost, or older than the
topics, so each topic records under which requests it was promoted: if it has become a replica again since, the same
request does not promote it a second time.

Only the target tells which topics are this mirror's: replicas name their source's cluster, and workers have noted
the topics they write to (kafka/mirror_records.py). So a promotion needs neither the source nor a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from ...kafka.mirror_records import Notes, TargetTopic, mark_of
from ...kafka.records import Partition
from ...models import LastPromotion, MirrorMaker, Promote, PromotedTopic
from ...models.conditions import rfc3339
from ...models.mirror import MirrorSource
from ...models.patterns import matches
from ...models.problem import NewCondition, shown
from ...models.words import count_of

MOST_NAMED = 5
MOST_TOPICS, MOST_PARTITIONS = 100, 1000
"""Limits of the recovery point in a status, which shows first the topics and partitions that lack the most records; the
totals include the rest.
"""
INTERNAL = "__"
GIVE_UP = (
    "to give up rejoining, remove spec.rejoin and delete the topic's setting millstream.mirror.source"
    " (docs/identity-mirrors.md, Failing back)"
)
AGAIN = "correct spec.promote.topics and give the request another requestId"

UNFINISHED = ("Running", "Cancelled")
"""A request in one of these states continues while the spec has it; a withdrawn one begins again when it returns."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is impossible; nothing was promoted. The message is for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of the target.

    ``notes`` are the workers', by source; ``clusters`` are ids of source clusters known otherwise, by source;
    ``workers`` tells whether some may still run.
    """

    topics: Mapping[str, TargetTopic]
    notes: Mapping[str, Notes]
    clusters: Mapping[str, str] = field(default_factory=dict)
    workers: bool = True


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a topic of the target: its source, empty if unknown, and the id of its topic there."""

    source: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a request.

    ``waiting``: topics to promote; ``done``: promoted already; ``gone``: deleted since the request began;
    ``rejoining``: nothing may be promoted before these are replicas, because workers would make them read-only again
    and truncate producers' records.
    """

    waiting: Mapping[str, TargetTopic]
    done: Mapping[str, TargetTopic]
    origins: Mapping[str, Origin]
    gone: Sequence[str] = ()
    rejoining: Sequence[str] = ()

    @property
    def topics(self) -> dict[str, TargetTopic]:
        return {**self.waiting, **self.done}


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """The end of a partition of the source; ``at`` is when it was last known, None for now."""

    offset: int
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A mirror after a reconcile of its promotion.

    ``mirror`` is as the API server has it; ``last`` and ``condition`` are for its status. ``observed``: the target has
    been read, and nothing is left to promote now.
    """

    mirror: MirrorMaker
    last: LastPromotion | None = None
    condition: NewCondition | None = None
    observed: bool = False

    @property
    def runs(self) -> bool:
        """Whether a request has not ended, or has not begun yet."""
        return requested(with_last(self.mirror, self.last)) is not None

    @property
    def is_over(self) -> bool:
        """Whether the mirror has nothing left to mirror."""
        return is_over(with_last(self.mirror, self.last))


def with_last(mirror: MirrorMaker, last: LastPromotion | None) -> MirrorMaker:
    return msgspec.structs.replace(mirror, status=msgspec.structs.replace(mirror.status, last_promotion=last))


def running(mirror: MirrorMaker) -> LastPromotion | None:
    """The promotion that began and has not ended."""
    last = mirror.status.last_promotion
    return last if last is not None and last.state == "Running" else None


def requested(mirror: MirrorMaker) -> Promote | None:
    """The request that has not ended yet."""
    promote, last = mirror.spec.promote, mirror.status.last_promotion
    if promote is None or (
        last is not None and last.request_id == promote.request_id and last.state not in UNFINISHED
    ):
        return None
    return promote


def is_over(mirror: MirrorMaker) -> bool:
    """Whether all topics are promoted, or being promoted: then the mirror has nothing to do, and no workers."""
    promote, last = mirror.spec.promote, mirror.status.last_promotion
    return (
        mirror.spec.mode == "Identity"
        and promote is not None
        and last is not None
        and last.request_id == promote.request_id
        and last.all_topics is True
        and last.state in ("Running", "Done")
    )


def plan(mirror: MirrorMaker, promote: Promote, seen: Observed) -> Plan | Refused:
    """The rest of a request."""
    origins = {
        name: origin
        for name, topic in seen.topics.items()
        if (origin := _origin(mirror, seen, topic)) is not None
    }
    if promote.topics is None:
        own = {name: seen.topics[name] for name in sorted(origins) if _selected(mirror, name)}
        if again := _promoted_before(promote, own):
            return Plan({}, {}, origins) if _is_done(mirror, promote) else Refused(again)
        rejoining = [name for name, topic in own.items() if topic.rejoins]
        if rejoining and not is_over(mirror):
            return Plan({}, {}, origins, rejoining=rejoining)
        if not _clusters(mirror, seen) and any(topic.source for topic in seen.topics.values()):
            return Refused(
                "no worker of this mirror has noted a topic in the target, so which replicas are this mirror's is not"
                f" known: name them in spec.promote.topics and give the request another requestId{_replicas(seen)}"
            )
        if (
            seen.workers
        ):  # they are ending; a topic that they make read-only until then is promoted afterwards
            own = {name: topic for name, topic in own.items() if not topic.rejoins}
        return Plan(*_by_state(own), origins)
    return _plan_named(mirror, promote, promote.topics, seen, origins)


def _plan_named(
    mirror: MirrorMaker,
    promote: Promote,
    names: Sequence[str],
    seen: Observed,
    origins: dict[str, Origin],
) -> Plan | Refused:
    last = mirror.status.last_promotion
    known = last if last is not None and last.request_id == promote.request_id else None
    ids = {one.topic: one.topic_id for one in known.topics} if known is not None else {}
    is_same_request = running(mirror) is known
    gone, wrong, own = [], [], {}
    for name in sorted(set(names)):
        topic = seen.topics.get(name)
        is_same = topic is not None and topic.topic_id == ids.get(name)
        if name in ids and not is_same and is_same_request:
            gone.append(name)
        elif topic is None:
            wrong.append(f"there is no topic {name} in the target")
        elif is_same and (is_same_request or not topic.source or name in origins):
            own[name] = topic
            origins.setdefault(name, Origin("", ""))
        elif name in origins and topic.rejoins:
            wrong.append(f"topic {name} rejoins its source: wait until it is a replica; {GIVE_UP}")
        elif name in origins:
            own[name] = topic
        elif of := _source_names(mirror, seen, topic.source_cluster):
            wrong.append(
                f"topic {name} is a read-only replica of a topic of {of}, but spec.topics of MirrorMaker {mirror.name}"
                " does not select it"
            )
        elif topic.source:
            wrong.append(
                f"topic {name} is a read-only replica of a topic of another cluster ({topic.source}), which is no"
                f" source of MirrorMaker {mirror.name}"
            )
        else:
            wrong.append(f"topic {name} is an ordinary topic that this mirror has not written to")
    if wrong:
        mirrored = sorted(
            name for name in origins if seen.topics[name].source and not seen.topics[name].rejoins
        )
        there = (
            f"this mirror's topics are {shown(mirrored, MOST_NAMED)}" if mirrored else "it mirrors none now"
        )
        return Refused(f"{shown(wrong, MOST_NAMED)}; {there}: {AGAIN}")
    if again := _promoted_before(promote, own):
        return Refused(again)
    return Plan(*_by_state(own), origins, gone, [name for name, topic in own.items() if topic.rejoins])


def _is_done(mirror: MirrorMaker, promote: Promote) -> bool:
    last = mirror.status.last_promotion
    return last is not None and last.request_id == promote.request_id and last.state == "Done"


def _promoted_before(promote: Promote, topics: Mapping[str, TargetTopic]) -> str:
    """Why a request promotes none of these topics: it has promoted some that are replicas again. "" if it may."""
    again = [name for name, one in topics.items() if one.source and one.was_promoted_by(promote.request_id)]
    if not again:
        return ""
    return (
        f"this request has promoted {shown(sorted(again), MOST_NAMED)} before, which became replicas again later:"
        " give it another requestId to promote them"
    )


def _by_state(topics: Mapping[str, TargetTopic]) -> tuple[dict[str, TargetTopic], dict[str, TargetTopic]]:
    waiting = {name: topic for name, topic in topics.items() if topic.source}
    return waiting, {name: topic for name, topic in topics.items() if not topic.source}


def _origin(mirror: MirrorMaker, seen: Observed, topic: TargetTopic) -> Origin | None:
    """The source from which this mirror copies, or has copied, exactly this topic.

    None if it is not this mirror's: another MirrorMaker may copy other topics from the same cluster.
    """
    mark = mark_of(topic.topic_id)
    for source in mirror.spec.sources:
        notes = seen.notes.get(source.name, {})
        places = (Partition(topic.name, number) for number in range(topic.partitions))
        note = next(
            (notes[place] for place in places if place in notes and notes[place].target == mark), None
        )
        if topic.source_cluster in _cluster_ids(seen, source) and (
            note is not None or _selects(mirror, source, topic.name)
        ):
            return Origin(source.name, topic.source_topic)
        if note is not None and not topic.source:
            return Origin(source.name, note.source_topic)
    if topic.source and not _clusters(mirror, seen) and _selected(mirror, topic.name):
        return Origin("", topic.source_topic)
    return None


def _cluster_ids(seen: Observed, source: MirrorSource) -> set[str]:
    ids = {note.source_cluster for note in seen.notes.get(source.name, {}).values()}
    return (ids | {seen.clusters.get(source.name, "")}) - {""}


def _clusters(mirror: MirrorMaker, seen: Observed) -> set[str]:
    return {one for source in mirror.spec.sources for one in _cluster_ids(seen, source)}


def _source_names(mirror: MirrorMaker, seen: Observed, cluster_id: str) -> str:
    """The names of the sources that are this cluster; "" if none is."""
    return ", ".join(
        source.name for source in mirror.spec.sources if cluster_id in _cluster_ids(seen, source)
    )


def _selected(mirror: MirrorMaker, name: str) -> bool:
    return any(_selects(mirror, source, name) for source in mirror.spec.sources)


def _selects(mirror: MirrorMaker, source: MirrorSource, name: str) -> bool:
    """Whether spec.topics selects the topic of this source that has this name in the target."""
    topics, prefix = mirror.spec.topics, prefix_of(mirror, source)
    return (
        name.startswith(prefix)
        and not (own := name.removeprefix(prefix)).startswith(INTERNAL)
        and matches(own, topics.include)
        and not matches(own, topics.exclude)
    )


def prefix_of(mirror: MirrorMaker, source: MirrorSource) -> str:
    return "" if mirror.spec.naming == "Same" else f"{source.name}."


def _replicas(seen: Observed) -> str:
    names = sorted(name for name, topic in seen.topics.items() if topic.source)
    return f"; the target has the replicas {shown(names, MOST_NAMED)}" if names else ""


def begun(promote: Promote, planned: Plan, before: LastPromotion | None, now: datetime) -> LastPromotion:
    """The record of the request, written before anything is promoted.

    A request for all topics lists none: it promotes the topics that are replicas by then.
    """
    if before is not None and before.request_id == promote.request_id and before.state == "Running":
        return before
    named = planned.topics if promote.topics is not None else {}
    return LastPromotion(
        request_id=promote.request_id,
        state="Running",
        time=now,
        all_topics=promote.topics is None,
        topics=tuple(
            PromotedTopic(topic=name, topic_id=topic.topic_id) for name, topic in sorted(named.items())
        ),
    )


def ended(
    promote: Promote,
    planned: Plan,
    promoted: Sequence[str],
    ends: Mapping[Partition, int],
    source_ends: Mapping[Partition, SourceEnd],
    now: datetime,
) -> LastPromotion:
    """A finished request.

    ``promoted``: topics promoted by this request; ``ends``: those of mirrored records; ``source_ends``: those of the
    source, by partition of the target, if known.
    """
    rows = [
        _row(topic, planned.origins[name].source, ends, source_ends) for name, topic in planned.topics.items()
    ]
    partitions = sum(topic.partitions for topic in planned.topics.values())
    known = sum(at >= 0 <= there for row in rows for at, there in zip(row.ends, row.source_ends, strict=True))
    last = LastPromotion(
        request_id=promote.request_id,
        state="Done",
        time=now,
        all_topics=promote.topics is None,
        topic_count=len(rows),
        partition_count=partitions,
        not_mirrored=sum(row.not_mirrored or 0 for row in rows) if known or not partitions else None,
        unknown_partitions=partitions - known,
        topics=_most_important(rows),
    )
    oldest = min((at for row in rows if (at := row.source_ends_at) is not None), default=None)
    endless = sum(end < 0 for row in rows for end in row.ends)
    words = _words(last, promoted, planned, oldest, endless)
    return msgspec.structs.replace(last, message=words)


def _row(
    topic: TargetTopic,
    source: str,
    ends: Mapping[Partition, int],
    source_ends: Mapping[Partition, SourceEnd],
) -> PromotedTopic:
    places = [Partition(topic.name, number) for number in range(topic.partitions)]
    known = [source_ends[where] for where in places if where in source_ends]
    both = [where for where in places if where in ends and where in source_ends]
    times = [one.at for one in known if one.at is not None]
    return PromotedTopic(
        topic=topic.name,
        topic_id=topic.topic_id,
        source=source or None,
        ends=tuple(ends.get(where, -1) for where in places),
        source_ends=tuple(_source_end(source_ends.get(where), ends.get(where, -1)) for where in places),
        source_ends_from=("LastKnown" if times else "Source") if known else None,
        source_ends_at=min(times, default=None),
        not_mirrored=sum(max(0, source_ends[where].offset - ends[where]) for where in both) if both else None,
    )


def _source_end(known: SourceEnd | None, mirrored: int) -> int:
    """The source's end. Workers note it about once a second, and what they have copied since was also in the source."""
    if known is None:
        return -1
    return known.offset if known.at is None else max(known.offset, mirrored)


def _most_important(rows: Sequence[PromotedTopic]) -> tuple[PromotedTopic, ...]:
    """The topics for a status: those that lack the most records, then those with an unknown number."""
    room = MOST_PARTITIONS
    found: list[PromotedTopic] = []
    for row in sorted(
        rows, key=lambda row: (-(row.not_mirrored or 0), row.not_mirrored is not None, row.topic)
    ):
        if len(row.ends) <= room and len(found) < MOST_TOPICS:
            room -= len(row.ends)
            found.append(row)
    return tuple(sorted(found, key=lambda row: row.topic))


def _words(
    last: LastPromotion, promoted: Sequence[str], planned: Plan, oldest: datetime | None, endless: int
) -> str:
    """``endless`` are partitions whose end of mirrored records is unknown."""
    already = sorted(planned.topics.keys() - set(promoted))
    parts = [count_of(len(promoted), "topic") + " promoted"] if promoted or not already else []
    if already:
        parts.append(f"promoted before: {shown(already, MOST_NAMED)}")
    if planned.gone:
        parts.append(f"deleted meanwhile: {shown(planned.gone, MOST_NAMED)}")
    if last.partition_count:
        parts.append(_recovery_point(last, oldest, endless))
    if endless:
        parts.append(f"where mirrored records end is not known of {count_of(endless, 'partition')}")
    return "; ".join(parts)


def _recovery_point(last: LastPromotion, oldest: datetime | None, endless: int) -> str:
    if last.not_mirrored is None and endless == last.partition_count:
        return "how many records were not mirrored is not known"
    if last.not_mirrored is None:
        return "how many records were not mirrored is not known: the operator does not reach the source"
    verb = "was" if last.not_mirrored == 1 else "were"
    words = f"{count_of(last.not_mirrored, 'record')} of the source {verb} not mirrored"
    if oldest is not None:
        words = (
            f"at least {words}, as last known at {rfc3339(oldest)}: the operator does not reach the source"
        )
    if last.unknown_partitions:
        words += f"; of {count_of(last.unknown_partitions, 'partition')} it is not known"
    return words


def refusal(request_id: str, message: str, now: datetime) -> LastPromotion:
    return LastPromotion(request_id=request_id, state="Refused", time=now, message=message)


def cancelled(begun: LastPromotion, message: str, now: datetime) -> LastPromotion:
    """A request that was withdrawn while it ran. It keeps the ids of the topics that it names."""
    return msgspec.structs.replace(begun, state="Cancelled", time=now, message=message)
