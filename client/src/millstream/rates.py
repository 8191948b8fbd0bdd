"""Rates and lag of a cluster, from two looks at it: pure except for `look`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import OffsetSpec

from millstream.connection import Cluster
from millstream.groups import committed_by_group, list_groups
from millstream.topics import INTERNAL, list_offsets


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at one moment: ``ends`` are sums over a topic's partitions, ``committed`` over those of a group."""

    at: float
    ends: dict[str, int]
    committed: dict[str, int]
    lag: dict[str, int]


@dataclass(frozen=True, slots=True)
class TopicRate:
    """``records_per_s``: appended; None if the topic was created again meanwhile. ``records``: appended so far."""

    topic: str
    records_per_s: float | None
    records: int


@dataclass(frozen=True, slots=True)
class GroupRate:
    """``committed_per_s``; None after a reset to earlier offsets. ``lag``: records behind the topics' ends."""

    group: str
    committed_per_s: float | None
    lag: int


def look(cluster: Cluster) -> Look:
    """The cluster now. Partitions without a leader are left out. The requests for groups are in flight together."""
    topics = cluster.metadata().topics
    led = [
        (name, n) for name, topic in topics.items() for n, at in topic.partitions.items() if at.leader >= 0
    ]
    specs: Any = OffsetSpec  # untyped
    latest = list_offsets(cluster, led, specs.latest())
    ends = Counter(dict.fromkeys(topics.keys() - INTERNAL, 0))
    for (name, _), end in latest.items():
        if name in ends:
            ends[name] += end
    committed: dict[str, int] = {}
    lag: dict[str, int] = {}
    groups = [group.group for group in list_groups(cluster)]
    for group, offsets in committed_by_group(cluster, groups).items():
        found = {at: offset for at, offset in offsets.items() if offset >= 0 and _is_there(topics, *at)}
        committed[group] = sum(found.values())
        lag[group] = sum(max(latest[at] - offset, 0) for at, offset in found.items() if at in latest)
    return Look(time.monotonic(), dict(ends), committed, lag)


def _is_there(topics: Mapping[str, Any], topic: str, partition: int) -> bool:
    """Offsets outlive their topic."""
    return topic in topics and partition in topics[topic].partitions


def topic_rates(before: Look, after: Look) -> list[TopicRate]:
    """Busiest first."""
    found = [
        TopicRate(name, _rate(before.ends.get(name, 0), end, before, after), end)
        for name, end in after.ends.items()
    ]
    return sorted(found, key=lambda rate: (-(rate.records_per_s or 0), rate.topic))


def group_rates(before: Look, after: Look) -> list[GroupRate]:
    """Furthest behind first."""
    found = [
        GroupRate(name, _rate(before.committed.get(name, 0), committed, before, after), after.lag[name])
        for name, committed in after.committed.items()
    ]
    return sorted(found, key=lambda rate: (-rate.lag, rate.group))


def _rate(old: int, new: int, before: Look, after: Look) -> float | None:
    elapsed = after.at - before.at
    return None if new < old or elapsed <= 0 else (new - old) / elapsed
