"""Mirrors that copy into a cluster, from the progress that their workers store there.

A worker commits its progress in the target, under the group ``millstream-mirror.MIRROR.SOURCE``: the target's topic and
partition, the next offset of the source, and more as JSON. The target does not know the ends of the source's logs, so a
lag needs the source: ``sources`` of `mirror_status`.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from millstream.commit_metadata import metadata_of
from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors, results
from millstream.errors import BadInput, MillstreamError, UnknownGroup
from millstream.topics import kafka_id, watermarks

PREFIX = "millstream-mirror."
REPLICA = "millstream.mirror.source"
"""The setting of a topic that is the read-only replica of a mirror with mode Identity."""
Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that the source deleted before they were mirrored: ``first`` to before ``until``."""

    partition: int
    first: int
    until: int
    at: str


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic of the target.

    ``lag``: records, None without the source. ``caught_up``: when the partition that is furthest behind had last caught
    up, as committed with its last record; "" if never. ``promoted``: it was a replica, and is writable and not mirrored
    any more. ``gone``: the source does not have it any more; False without the source. ``gaps``: the last one of each
    partition.
    """

    topic: str
    partitions: int
    lag: int | None
    caught_up: str
    gaps: tuple[Gap, ...]
    promoted: bool = False
    gone: bool = False

    @property
    def mirrored(self) -> bool:
        return not (self.promoted or self.gone)


@dataclass(frozen=True, slots=True)
class Mirror:
    """One source of one mirror. ``state`` is its group's; ``workers`` run now. ``source_cluster``: the id.

    ``lag``: of all topics that are in the source and not promoted; None if it is unknown in one of them.
    """

    mirror: str
    source: str
    group: str
    state: str
    workers: int
    source_cluster: str
    lag: int | None
    topics: tuple[MirroredTopic, ...]


@dataclass(frozen=True, slots=True)
class _Progress:
    offset: int
    cluster: str
    topic_id: str
    caught_up_ms: int
    gap: tuple[int, int, int] | None
    mark: int
    """With mode Identity: distinguishes topics that had the same name in the target."""


def mirror_status(
    cluster: Cluster, name: str | None = None, sources: Mapping[str, Cluster] | None = None
) -> list[Mirror]:
    """The mirrors into this cluster, or those of one name; ``sources`` are by name, for their lags.

    Raises UnknownGroup if there is no mirror of that name, BadInput if a source is another cluster than the mirror's.
    """
    with kafka_errors():  # list_consumer_groups leaves out mirrors' groups, whose members do not consume
        groups = cluster.admin.list_groups(timeout=REQUEST_TIMEOUT_S)
    states = {str(group.id): (str(group.state), len(group.members)) for group in groups}
    mirrors = [found for found in _mirrors(states) if name in (None, found[1])]
    if name is not None and not mirrors:
        raise UnknownGroup(
            f'no mirror "{name}" has progress in this cluster',
            "millstream mirror status shows those that have",
        )
    given = dict(sources or {})
    for source in given.keys() - {source for _, _, source in mirrors}:
        known = ", ".join(sorted({source for _, _, source in mirrors})) or "none"
        raise BadInput(f"sources: no mirror has a source {source}", f"there is: {known}")
    named = Counter(source for _, _, source in mirrors)
    return [
        _mirror(cluster, group, mirror, source, states[group], given.get(source), shared=named[source] > 1)
        for group, mirror, source in sorted(mirrors, key=lambda entry: entry[1:])
    ]


def writers_of(cluster: Cluster, topic: str) -> list[str]:
    """The mirrors that copy records into a topic, as ``mirror MIRROR of SOURCE``; none that this user may not see."""
    found = []
    try:
        with kafka_errors():
            groups = [str(group.id) for group in cluster.admin.list_groups(timeout=REQUEST_TIMEOUT_S)]
        for group, mirror, source in sorted(_mirrors(groups)):
            progress = {at: found for at, found in _progress_of(cluster, group).items() if at[0] == topic}
            if progress and topic not in _promoted(cluster, progress):
                found.append(f"mirror {mirror} of {source}")
    except MillstreamError:
        return []
    return found


def _mirrors(groups: Iterable[str]) -> list[tuple[str, str, str]]:
    """The groups of mirrors among these, each with the names of the mirror and of its source."""
    return [
        (group, mirror, source)
        for group in groups
        if group.startswith(PREFIX)
        for mirror, _, source in (group.removeprefix(PREFIX).rpartition("."),)
        if mirror
    ]


def _mirror(
    cluster: Cluster,
    group: str,
    mirror: str,
    source: str,
    state: tuple[str, int],
    origin: Cluster | None,
    *,
    shared: bool,
) -> Mirror:
    """``shared``: another mirror has a source of this name, which may be another cluster."""
    progress = _progress_of(cluster, group)
    ids = sorted({partition.cluster for partition in progress.values()} - {""})
    lags: dict[Where, int] = {}
    gone: set[str] = set()
    if origin is not None:
        lags, gone = _lags(origin, source, ids, progress, f"{source} of {mirror}" if shared else "")
    topics: dict[str, list[Where]] = {}
    for where in sorted(progress):
        topics.setdefault(where[0], []).append(where)
    promoted = _promoted(cluster, progress)
    found = tuple(
        _topic(
            topic,
            {where[1]: progress[where] for where in of_topic},
            [lags.get(w) for w in of_topic],
            promoted=topic in promoted,
            gone=topic in gone,
        )
        for topic, of_topic in topics.items()
    )
    name, workers = state
    behind = [topic.lag for topic in found if topic.mirrored]
    lag = None if origin is None or None in behind else sum(each or 0 for each in behind)
    return Mirror(mirror, source, group, name, workers, ", ".join(ids), lag, found)


def _topic(
    name: str, progress: Mapping[int, _Progress], lags: Iterable[int | None], *, promoted: bool, gone: bool
) -> MirroredTopic:
    known = [lag for lag in lags if lag is not None]
    oldest = min(partition.caught_up_ms for partition in progress.values())
    gaps = tuple(
        Gap(number, partition.gap[0], partition.gap[1], _time(partition.gap[2]))
        for number, partition in progress.items()
        if partition.gap is not None
    )
    lag = sum(known) if len(known) == len(progress) else None
    return MirroredTopic(name, len(progress), lag, _time(oldest), gaps, promoted, gone)


def _promoted(cluster: Cluster, progress: Mapping[Where, _Progress]) -> set[str]:
    """The topics that were replicas, by their workers' progress, and have lost the setting."""
    there = cluster.metadata().topics
    names = sorted({topic for topic, _ in progress} & there.keys())
    if not names:
        return set()
    asked = cluster.admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S)
    marks = {name: _mark(kafka_id(found.topic_id)) for name, found in results(asked).items()}
    replicas = [
        topic
        for topic in names
        if any(partition.mark == marks[topic] for where, partition in progress.items() if where[0] == topic)
    ]
    if not replicas:
        return set()
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in replicas]
    configs = results(cluster.admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S))
    return {
        resource.name
        for resource, entries in configs.items()
        if REPLICA not in entries or not entries[REPLICA].value
    }


def _mark(topic_id: str) -> int:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}==")).int >> 65


def _progress_of(cluster: Cluster, group: str) -> dict[Where, _Progress]:
    asked = cluster.admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_TIMEOUT_S
    )
    found = {}
    for at in results(asked)[group].topic_partitions:
        if at.offset >= 0 and (progress := _read(at.offset, metadata_of(at))) is not None:
            found[at.topic, at.partition] = progress
    return found


def _read(offset: int, metadata: str) -> _Progress | None:
    """Parse data that begins with a worker's JSON object; None for anything else."""
    try:
        stored, _ = json.JSONDecoder().raw_decode(metadata)
        if stored.get("left") is True:  # its mirror no longer selects the topic
            return None
        gap = stored.get("gap")
        return _Progress(
            offset,
            str(stored["cluster"]),
            str(stored["topicId"]),
            int(stored["at"]),
            None if gap is None else (int(gap[0]), int(gap[1]), int(gap[2])),
            int(stored["producer"][0]),
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return None


def _lags(
    origin: Cluster, source: str, ids: list[str], progress: Mapping[Where, _Progress], shared: str
) -> tuple[dict[Where, int], set[str]]:
    """The lag of each partition, and the topics that the source does not have any more.

    No lag is known of a partition without a leader, of a topic that was created again in the source, or of which the
    mirror has not begun all partitions. ``shared``: the source with its mirror's name, if others have one of this name.
    """
    metadata = origin.metadata()
    if ids and metadata.cluster_id not in ids:
        raise BadInput(
            f"sources: {origin.bootstrap} is cluster {metadata.cluster_id}, not {', '.join(ids)},"
            f" which {shared or source} is",
            f"name one of the mirrors with a source {source}: millstream mirror status MIRROR"
            if shared
            else "name an address of that cluster",
        )
    names = _source_topics(origin, source, metadata.topics, progress)
    places = {
        where: (names[where[0]], where[1])
        for where in progress
        if where[0] in names and where[1] in metadata.topics[names[where[0]]].partitions
    }
    led = {(t, p) for t, p in places.values() if metadata.topics[t].partitions[p].leader >= 0}
    ends = watermarks(origin, sorted(led))
    lags = {
        where: max(0, ends[place][1] - progress[where].offset)
        for where, place in places.items()
        if place in ends
    }
    begun = Counter(topic for topic, _ in progress)
    part = {topic for topic, name in names.items() if begun[topic] < len(metadata.topics[name].partitions)}
    gone = {topic for topic in begun if not _names_of(source, topic) & metadata.topics.keys()}
    return {where: lag for where, lag in lags.items() if where[0] not in part}, gone


def _names_of(source: str, topic: str) -> set[str]:
    """The possible names in the source of a topic of the target."""
    return {topic, topic.removeprefix(f"{source}.")}


def _source_topics(
    origin: Cluster, source: str, there: Mapping[str, Any], progress: Mapping[Where, _Progress]
) -> dict[str, str]:
    """The source's topic of each topic in the target: of the same name or without the prefix, by its id."""
    wanted = {
        topic: sorted(_names_of(source, topic) & there.keys(), key=len, reverse=True)
        for topic in {topic for topic, _ in progress}
    }
    names = sorted({name for candidates in wanted.values() for name in candidates})
    ids = {}
    if names:
        asked = origin.admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S)
        ids = {name: kafka_id(found.topic_id) for name, found in results(asked).items()}
    found = {}
    for (topic, _), partition in progress.items():
        for name in wanted[topic]:
            if not partition.topic_id or ids[name] == _kafka_form(partition.topic_id):
                found[topic] = name
    return found


def _kafka_form(topic_id: str) -> str:
    try:
        return base64.urlsafe_b64encode(uuid.UUID(topic_id).bytes).decode().rstrip("=")
    except ValueError:
        return topic_id


def _time(ms: int) -> str:
    try:
        return "" if ms <= 0 else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return ""
