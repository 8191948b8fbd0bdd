"""How far brokers' clocks are from this machine's.

A group's coordinator stamps the records that it writes about the group. So this module commits one offset in a new
group of each broker, and deletes the group again. A group's coordinator is the leader of its partition of
__consumer_offsets: abs(hashCode(group)) % partitions, with Java's String.hashCode.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from millstream.connection import Cluster
from millstream.errors import Failed, MillstreamError
from millstream.groups import commit_offsets, delete_groups
from millstream.topics import watermarks

TIMEOUT_S: Final = 3.0
PATIENCE_S: Final = 5.0
POSITIONS: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Clock:
    """A broker's clock: by how many seconds it is ahead of ours (negative: behind), or why that is unknown."""

    broker: int
    ahead_s: float = 0.0
    unknown: str = ""


def clocks(cluster: Cluster) -> Iterator[Clock]:
    """The clock of each broker that coordinates groups. Raises Failed if none does."""
    led = _led_by_broker(cluster)
    if not led:
        first = _group()
        _commit(cluster, first)  # the first group of a cluster creates the topic
        delete_groups(cluster, [first])
        led = _led_by_broker(cluster)
    if not led:
        raise Failed(f"{POSITIONS} does not exist")
    count = sum(map(len, led.values()))
    for broker, partitions in sorted(led.items()):
        group = _group()
        while (number := partition_of(group, count)) not in partitions:
            group = _group()
        try:
            yield Clock(broker, _ahead_s(cluster, group, number))
        except MillstreamError as error:
            yield Clock(broker, unknown=str(error))


def partition_of(group: str, partitions: int) -> int:
    """The partition of __consumer_offsets that stores a group; the group's name must be ASCII."""
    found = 0
    for unit in group.encode("ascii"):
        found = (31 * found + unit) & 0xFFFFFFFF
    signed = found - (1 << 32) if found & 0x80000000 else found
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _led_by_broker(cluster: Cluster) -> dict[int, set[int]]:
    if POSITIONS not in cluster.metadata().topics:
        return {}
    found: dict[int, set[int]] = {}
    for number, partition in cluster.led_partitions(POSITIONS).items():
        found.setdefault(partition.leader, set()).add(number)
    return found


def _group() -> str:
    return f"millstream-doctor-{uuid.uuid4().hex[:8]}"


def _commit(cluster: Cluster, group: str) -> tuple[float, float]:
    """Commit; returns the times before and after. Retries for some seconds: the coordinator may be newly elected."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        asked = time.time()
        try:
            commit_offsets(cluster, group, {(POSITIONS, 0): 0})
        except MillstreamError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return asked, time.time()


def _ahead_s(cluster: Cluster, group: str, number: int) -> float:
    """Zero if the stamp lies between request and response."""
    at = (POSITIONS, number)
    before = watermarks(cluster, [at])[at][1]
    asked, answered = _commit(cluster, group)
    try:
        stamped = _stamp(cluster, group, TopicPartition(*at, before))
    finally:
        delete_groups(cluster, [group])
    return min(stamped - asked, 0.0) + max(stamped - answered, 0.0)


def _stamp(cluster: Cluster, group: str, begin: TopicPartition) -> float:
    """The time at which the coordinator wrote the group's commit, in seconds since 1970."""
    consumer = Consumer(cluster.client_config(group_id=group, enable_auto_commit=False))
    try:
        consumer.assign([begin])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            for message in consumer.consume(100, 0.1):
                if message.error() is None and group.encode() in (message.key() or b""):
                    return message.timestamp()[1] / 1000
    finally:
        consumer.close()
    raise Failed(f"{POSITIONS} does not show the commit")
