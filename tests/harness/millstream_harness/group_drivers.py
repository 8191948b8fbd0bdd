"""The drivers of group coordinators, and a topic in memory that several of them share."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from millstream_broker.coordinator.effects import TransactionalProducer, TransactionMarker
from millstream_broker.groups.driver import GroupDriver
from millstream_broker.groups.messages import Commit, GroupConfig, Join, JoinResult, OffsetToCommit, Sync
from millstream_kafka.control_batch import EndTransactionMarker, build_marker
from millstream_kafka.protocol.schema import ZERO_UUID

TOPICS = {"t": uuid.uuid4()}
PATIENCE_S = 60.0
"""Longer than a thread takes on a busy machine."""


class SharedTopic:
    """`coordinator.writer.InternalTopic`: one partition in memory, the replicated log that every coordinator sees."""

    name = "__consumer_offsets"

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.exists = False
        self.created = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.readable = threading.Event()
        self.readable.set()
        self.reading = threading.Event()
        self.attempts = 0
        self.ended = 0
        """Threads that have read all of it."""
        self.broken: Exception | None = None

    def partition_count(self) -> int | None:
        return 1 if self.exists else None

    async def create(self) -> int:
        self.created += 1
        self.exists = True
        return 1

    async def append(
        self,
        partition: int,
        batch: bytes,
        producer: TransactionalProducer | None = None,
        *,
        is_end: bool = False,
    ) -> None:
        await self.writable.wait()
        self.batches.append(batch)

    async def append_marker(self, partition: int, marker: TransactionMarker) -> None:
        await self.writable.wait()
        self.batches.append(
            build_marker(
                EndTransactionMarker(marker.committed, marker.coordinator_epoch),
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                timestamp=0,
            )
        )

    def read_all(self, partition: int) -> Iterator[bytes]:
        self.attempts += 1
        if self.broken is not None:
            raise self.broken
        return self._snapshot(list(self.batches))

    def _snapshot(self, found: list[bytes]) -> Iterator[bytes]:
        self.reading.set()
        assert self.readable.wait(PATIENCE_S)
        yield from found
        self.ended += 1


def joining(member_id: str = "", instance: str | None = None) -> Join:
    return Join(
        "g", member_id, "c", "/h", 60_000, 10_000, "consumer", (("range", b"m"),), instance_id=instance
    )


def committing(offset: int) -> Commit:
    return Commit("simple", [OffsetToCommit("t", 0, offset, topic_id=TOPICS["t"])])


@asynccontextmanager
async def drivers(topic: SharedTopic, count: int = 2) -> AsyncIterator[list[GroupDriver]]:
    """Coordinators of one cluster; the first leads the partition."""
    config = GroupConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1)
    found = [GroupDriver(config, topic, lambda name: TOPICS.get(name, ZERO_UUID)) for _ in range(count)]
    await found[0].ensure_topic()
    found[0].on_election(0, 1)
    await loaded(found[0])
    try:
        yield found
    finally:
        topic.writable.set()
        topic.readable.set()
        for one in found:
            await one.close()


async def loaded(driver: GroupDriver) -> None:
    await until(lambda: not driver.list_groups()[0])


async def until(condition: Callable[[], bool]) -> None:
    deadline = (
        time.monotonic() + PATIENCE_S
    )  # not the loop's time, which a test may speed up: a thread has its own
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def position(driver: GroupDriver) -> int | None:
    committed = driver.fetch_offsets("simple", [("t", 0)], stable=False).offsets["t", 0]
    return None if committed is None else committed.offset


async def assembled(driver: GroupDriver) -> tuple[JoinResult, JoinResult]:
    """A stable group: a dynamic leader and a static member."""
    leader = await driver.join(joining())
    follower = asyncio.create_task(driver.join(joining(instance="i")))
    await asyncio.sleep(0)
    leader = await driver.join(joining(leader.member_id))
    static = await follower
    waiting = asyncio.create_task(driver.sync(Sync("g", static.member_id, 2, {}, "i")))
    await asyncio.sleep(0)
    handed_in = {leader.member_id: b"one", static.member_id: b"two"}
    assert (await driver.sync(Sync("g", leader.member_id, 2, handed_in))).assignment == b"one"
    assert (await waiting).assignment == b"two"
    return leader, static
