"""Start offsets of partitions, for "earliest", "latest", a time, or an offset within the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from confluent_kafka.admin import OffsetSpec

from millstream.connection import Cluster
from millstream.consuming.message import Partition
from millstream.consuming.settings import Target
from millstream.topics import list_offsets, watermarks


def within_logs(cluster: Cluster, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
    """The nearest offsets within the logs. Partitions without a leader keep theirs, because nobody knows their logs.

    UnknownTopic, Failed.
    """
    led = [
        (topic, number)
        for topic in {topic for topic, _ in offsets}
        for number, partition in cluster.partitions(topic).items()
        if (topic, number) in offsets and partition.leader >= 0
    ]
    bounds = watermarks(cluster, led)
    return {
        at: offset
        for at, offset in offsets.items()
        if at not in bounds or bounds[at][0] <= offset <= bounds[at][1]
    }


def starting_offsets(
    cluster: Cluster, partitions: Collection[Partition], target: Target
) -> dict[Partition, int]:
    """The offset in each partition. A time after the last message becomes the end. NoLeader, Failed."""
    if not partitions:
        return {}
    for topic in {topic for topic, _ in partitions}:
        cluster.led_partitions(topic, [number for name, number in partitions if name == topic])
    ends = watermarks(cluster, partitions)
    by_time: dict[Partition, int] = {}
    if isinstance(target, datetime):
        specs: Any = OffsetSpec  # untyped
        by_time = list_offsets(cluster, partitions, specs.for_timestamp(int(target.timestamp() * 1000)))
    found = {}
    for at in partitions:
        earliest, latest = ends[at]
        if target == "earliest":
            found[at] = earliest
        elif target == "latest":
            found[at] = latest
        elif isinstance(target, datetime):
            found[at] = by_time[at] if by_time[at] >= 0 else latest
        else:
            assert isinstance(target, int)
            found[at] = min(max(target, earliest), latest)
    return found
