"""The high watermark under a flush policy: never beyond the policy's promise; group commit; a failing disk."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.coordination import PartitionRecord, TopicRecord
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.partition import Partition
from millstream_broker.replication.purgatory import DelayedProduce
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_harness.replica import Waiter
from millstream_harness.wire import record
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW_MS = 1_800_000_000_000


def open_partition(folder: Path, **config: str) -> Partition:
    overrides = {key.replace("_", "."): value for key, value in config.items()}
    topic = TopicRecord("t", uuid.uuid4(), (PartitionRecord((1,), 1, 0, (1,)),), overrides)
    log = Log.open(folder / "t-0", LogConfig(), clean=True)
    queue = AppendQueue(RequestMemory(1 << 20))
    return Partition(topic, 0, log, TopicConfig(BrokerConfig(), overrides), queue)


def batch(records: int = 1) -> memoryview:
    return memoryview(bytearray(build_batch([record("x", timestamp=NOW_MS)] * records)))


def held(partition: Partition, batches: memoryview) -> DelayedProduce:
    """Append batches that then wait for the disk."""
    waiting = partition.append(batches, NOW_MS)
    assert isinstance(waiting, DelayedProduce)
    assert waiting.info is not None
    return waiting


class SlowFlush:
    """Holds a log's flushes until a test allows them."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = threading.Semaphore(0)
        self.count = 0
        flush = Log.flush

        def slow(this: Log) -> int:
            assert self.allowed.acquire(timeout=60)
            self.count += 1
            return flush(this)

        monkeypatch.setattr(Log, "flush", slow)


async def test_without_a_policy_everything_is_acknowledged_at_once(tmp_path: Path) -> None:
    partition = open_partition(tmp_path)
    assert partition.append(batch(3), NOW_MS) == AppendInfo(0, 2, -1, 0)
    assert partition.high_watermark == 3


async def test_flush_messages_1_waits_for_the_disk_and_waits_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = open_partition(tmp_path, flush_messages="1")
    slow = SlowFlush(partition.log, monkeypatch)
    waiting = []
    for _ in range(50):
        waiting.append(held(partition, batch()))
        await asyncio.sleep(0)
    assert partition.high_watermark == 0
    slow.allowed.release()
    await waiting[0]
    slow.allowed.release()
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert partition.high_watermark == 50
    assert slow.count <= 2, "one fsync for all that waited"


async def test_flush_messages_n_lets_n_less_one_records_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = open_partition(tmp_path, flush_messages="5")
    slow = SlowFlush(partition.log, monkeypatch)
    assert isinstance(partition.append(batch(4), NOW_MS), AppendInfo)
    assert partition.high_watermark == 4
    waiting = held(partition, batch(3))
    assert partition.high_watermark <= 4
    slow.allowed.release()
    await asyncio.wait_for(waiting, 60)
    assert partition.high_watermark == 7


async def test_a_disk_that_fails_takes_the_partition_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = open_partition(tmp_path, flush_messages="1")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    monkeypatch.setattr("os.fdatasync", fail)
    waiting = held(partition, batch())
    with pytest.raises(ApiError) as error:
        await asyncio.wait_for(waiting, 60)
    assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "it may be there after a restart"
    assert partition.high_watermark == 0
    with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
        partition.check_online()
    with pytest.raises(ApiError, match="Input/output error"):
        partition.append(batch(), NOW_MS)


async def test_a_repetition_is_flushed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush may fail while the disk is full for a moment; the producer's retry is then a duplicate."""
    partition = open_partition(tmp_path, flush_messages="1")
    flush = Log.flush

    def full(this: Log) -> int:
        monkeypatch.setattr(Log, "flush", flush)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")

    monkeypatch.setattr(Log, "flush", full)
    sent = build_batch([Record(b"k", b"v", NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=0)
    first = held(partition, memoryview(bytearray(sent)))
    with pytest.raises(ApiError, match="NOT_ENOUGH_REPLICAS_AFTER_APPEND"):
        await asyncio.wait_for(first, 60)
    again = held(partition, memoryview(bytearray(sent)))
    assert again.info is not None
    assert again.info.duplicate
    await asyncio.wait_for(again, 60)
    assert partition.high_watermark == 1


async def test_changing_the_policy_lets_go_of_what_was_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = open_partition(tmp_path, flush_messages="1")
    slow = SlowFlush(partition.log, monkeypatch)
    waiting = held(partition, batch())
    partition.configure(TopicConfig(BrokerConfig(), {}))
    await asyncio.wait_for(waiting, 60)
    slow.allowed.release()


async def test_those_who_wait_are_told_when_the_partition_goes(tmp_path: Path) -> None:
    partition = open_partition(tmp_path)
    waiter = Waiter()
    partition.waiters.add(waiter)
    view = batch()
    partition.append(view, NOW_MS)
    partition.release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert waiter.told == [len(view), 0]
