"""ISR writes: causes, outcomes, and behaviour while coordination is unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream_broker.coordination import CoordinationError, PartitionRecord, TopicRecord
from millstream_broker.replication import alter_partition
from millstream_broker.replication.isr import Isr
from millstream_broker.replication.partition import Partition, now_ms
from millstream_broker.runtime.stats import Stats
from millstream_harness.replica import (
    NOW_MS,
    OTHERS,
    THEM,
    US,
    Clock,
    Replicating,
    batch,
    led_by,
    replicating,
    state,
    topic,
)
from millstream_harness.virtual_time import now, turns, virtual_time
from millstream_kafka.protocol.errors import ApiError


@dataclass
class Away:
    """Unavailable coordination, until a test sets `is_back`."""

    asked: int = 0
    is_back: bool = False

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        self.asked += 1
        if not self.is_back:
            raise CoordinationError("ZooKeeper cannot be reached")
        return replace(record, version=record.version + 1)


@dataclass
class Led:
    """The part of a partition that the ISR's writer uses."""

    isr: Isr
    index: int
    topic: str = "t"
    changes: list[tuple[int, ...]] = field(default_factory=list)

    def fetched(self, replica: int, offset: int, log_start: int) -> None:
        self.isr.fetched(replica, offset, 0, now_ms(), log_start)

    def isr_changed(self) -> None:
        self.changes.append(self.isr.record.isr)

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


@pytest.mark.parametrize("change", ["unknown", "led elsewhere", "risen"])
async def test_a_leader_epoch_rises_only_under_the_known_leadership(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    async with replicating(tmp_path) as world:
        await world.told(state(record := topic("t", led_by(US))))
        partition = world.replicas.partitions["t", 0]
        newer = replace(record, partitions=(led_by(THEM if change == "led elsewhere" else US, epoch=4),))
        world.replicas.latest_image = state() if change == "unknown" else state(newer)
        world.alter_partition.raise_epoch(partition, above=3 if change == "risen" else 4, epoch=9)
        await turns()
        assert world.coordination.records == {}
    assert caplog.records == []


@virtual_time
async def test_coordination_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    partitions: dict[tuple[str, int], Any] = {}
    for index in range(5):
        isr = Isr(
            1,
            PartitionRecord((1, 2), 1, 0, (1,)),
            log_end=0,
            high_watermark=0,
            min_isr=1,
            max_lag_ms=10_000,
            alive=(1, 2),
            now_ms=now_ms(),
        )
        partitions["t", index] = Led(isr, index)
    away = Away()
    replicas: Any = SimpleNamespace(partitions=partitions)
    stats = Stats()
    writer = alter_partition.AlterPartitionManager(replicas, away, stats, 10.0)
    while away.asked < 3 * len(partitions):
        for partition in partitions.values():
            writer.fetched(partition, 2, 0, 0)
        await asyncio.sleep(0.001)
    assert now() >= 2 * alter_partition.RETRY_S, (
        "a follower that fetches all the time does not have it written all the time"
    )
    said = [record.getMessage() for record in caplog.records]
    assert said == ["t-0: ISR write failed, retrying: ZooKeeper cannot be reached"]
    away.is_back = True
    await asyncio.sleep(alter_partition.RETRY_S)
    assert {one.isr.record.isr for one in partitions.values()} == {(1, 2)}
    assert stats.isr_expands == len(partitions)
    await writer.close()


# With a real partition


def led(*isr: int, **config: str) -> TopicRecord:
    return topic("t", led_by(US, US, THEM, OTHERS, isr=isr), **config)


@asynccontextmanager
async def leading(
    folder: Path, record: TopicRecord, **config: str
) -> AsyncIterator[tuple[Replicating, Partition, alter_partition.AlterPartitionManager]]:
    async with replicating(folder, {key.replace("_", "."): value for key, value in config.items()}) as world:
        world.coordination.records["t", 0] = record.partitions[0]
        await world.told(state(record))
        yield world, world.replicas.partition("t", 0), world.alter_partition


def counted(world: Replicating) -> tuple[int, int]:
    return world.stats.isr_expands, world.stats.isr_shrinks


async def test_a_follower_that_has_caught_up_joins_at_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, alter_partition.log.name)
    async with leading(tmp_path, led(US)) as (world, partition, writer):
        writer.fetched(partition, THEM, 0, 0)
        await turns()
        assert partition.record.isr == (US, THEM), "the partition knows it without a pause"
        assert counted(world) == (1, 0)
        writer.fetched(partition, OTHERS, 0, 0)
        await turns()
        assert world.coordination.records["t", 0].isr == (US, THEM, OTHERS)
        assert [one.getMessage() for one in caplog.records] == [
            "t-0: the ISR changes from 1 to 1,2",
            "t-0: the ISR changes from 1,2 to 1,2,3",
        ]


@pytest.mark.parametrize("lag_ms", [10_000, 100])
async def test_silent_followers_are_looked_for_twice_in_the_time_that_they_may_lag(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, lag_ms: int
) -> None:
    async with leading(tmp_path, led(US, THEM, OTHERS), replica_lag_time_max_ms=str(lag_ms)) as (
        world,
        partition,
        writer,
    ):
        partition.append(batch("a"), NOW_MS)
        looking = asyncio.create_task(writer.run())
        long_ago = now_ms()
        await clock.reach(lag_ms / 2000)
        assert counted(world) == (0, 0), "they are not late yet"
        monkeypatch.setattr(alter_partition, "now_ms", lambda: long_ago + 1_000_000)
        await clock.reach(lag_ms / 1000 - 0.001)
        assert counted(world) == (0, 0), "nobody looks yet"
        await clock.reach(lag_ms / 1000)
        assert world.coordination.records["t", 0].isr == (US,)
        assert counted(world) == (0, 2)
        looking.cancel()


async def test_a_leader_epoch_that_is_on_its_way_is_not_raised_again(tmp_path: Path, clock: Clock) -> None:
    """Producers try again while this broker knows the new epoch, and does not lead in it yet."""
    known = led(US)
    async with leading(tmp_path, known) as (world, partition, _):
        partition.log.assign_leader_epoch(7)
        partition.lead(partition.record)
        for _ in range(20):
            with pytest.raises(ApiError, match="takes a leader epoch above 7"):
                partition.append(batch("a"), NOW_MS)
            await turns()
            written = world.coordination.records["t", 0]
            world.replicas.receive_image(state(replace(known, partitions=(written,))))
        assert written.version == known.partitions[0].version + 1, "it was written once"
        await world.manager.follow()
        assert partition.record.leader_epoch == written.leader_epoch > 7
        partition.append(batch("a"), NOW_MS)


async def test_a_change_of_the_elr_alone_is_none_of_the_isr(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, alter_partition.log.name)
    record = replace(led_by(US, US, THEM, isr=(US,)), elr=(THEM,))
    async with leading(tmp_path, topic("t", record, min_insync_replicas="2")) as (world, partition, writer):
        partition.append(batch("a"), NOW_MS, acks=1)
        assert partition.isr is not None
        partition.isr.high_watermark = 1
        writer.fetched(partition, THEM, 0, 0)
        await turns()
        assert world.coordination.records["t", 0].elr == (), "it has lost a record"
        assert counted(world) == (0, 0)
        assert caplog.records == []


async def test_after_a_conflict_the_leader_goes_on_from_what_is_stored(tmp_path: Path, clock: Clock) -> None:
    record = led(US)
    async with leading(tmp_path, record) as (world, partition, writer):
        stored = replace(record.partitions[0], controller_epoch=2, version=5)
        world.coordination.records["t", 0] = stored
        world.replicas.receive_image(state(replace(record, partitions=(stored,))))
        writer.fetched(partition, THEM, 0, 0)
        await turns()
        assert world.coordination.records["t", 0] == replace(stored, isr=(US, THEM), version=6)


async def test_a_conflict_with_what_is_not_known_is_tried_again_after_a_pause(
    tmp_path: Path, clock: Clock
) -> None:
    record = led(US)
    async with leading(tmp_path, record) as (world, partition, writer):
        world.coordination.records["t", 0] = replace(record.partitions[0], version=5)
        world.replicas.receive_image(state())
        writer.fetched(partition, THEM, 0, 0)
        await turns()
        world.coordination.records["t", 0] = record.partitions[0]
        await clock.advance(alter_partition.RETRY_S - 0.001)
        assert world.coordination.records["t", 0].isr == (US,)
        await clock.advance(0.001)
        assert world.coordination.records["t", 0].isr == (US, THEM)


async def test_each_time_that_coordination_is_away_is_said(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(tmp_path, led(US)) as (world, partition, writer):
        for replica in (THEM, OTHERS):
            caplog.clear()
            world.coordination.failure = CoordinationError("ZooKeeper cannot be reached")
            writer.fetched(partition, replica, 0, 0)
            for _ in range(3):
                await clock.advance(alter_partition.RETRY_S)
            assert [one.getMessage() for one in caplog.records] == [
                "t-0: ISR write failed, retrying: ZooKeeper cannot be reached"
            ]
            world.coordination.failure = None
            await clock.advance(alter_partition.RETRY_S)
            assert replica in partition.record.isr


async def test_a_write_that_fails_unexpectedly_is_tried_again_after_a_pause(
    tmp_path: Path, clock: Clock
) -> None:
    async with leading(tmp_path, led(US)) as (world, partition, writer):
        world.coordination.failure = RuntimeError("nobody expects it")
        writer.fetched(partition, THEM, 0, 0)
        await turns()
        world.coordination.failure = None
        await clock.advance(alter_partition.RETRY_S - 0.001)
        assert partition.record.isr == (US,)
        await clock.advance(0.001)
        assert partition.record.isr == (US, THEM)


async def test_a_write_under_way_does_not_keep_a_broker_from_stopping(tmp_path: Path, clock: Clock) -> None:
    async with leading(tmp_path, led(US)) as (world, partition, writer):
        world.coordination.failure = CoordinationError("ZooKeeper cannot be reached")
        writer.fetched(partition, THEM, 0, 0)
        await turns()
        await writer.close()
        world.coordination.failure = None
        await clock.advance(2 * alter_partition.RETRY_S)
        assert world.coordination.records["t", 0].isr == (US,)
