"""What the origin of batches decides in a leader's log."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.coordination import PartitionRecord, TopicRecord
from millstream_broker.log import validator
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.partition import AT_ONCE_BYTES, Partition
from millstream_broker.replication.purgatory import DelayedProduce
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_kafka.batch import Record, build_batch

NOW_MS = 1_700_000_000_000


def batch(count: int = 1, *, base_offset: int = 0, leader_epoch: int = -1) -> memoryview:
    records = [Record(b"key", b"value", NOW_MS)] * count
    return memoryview(bytearray(build_batch(records, base_offset=base_offset, leader_epoch=leader_epoch)))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.open(tmp_path / "t-0", LogConfig(cleanup_policy="compact"), clean=True)


@pytest.fixture
def partition(log: Log) -> Partition:
    topic = TopicRecord(
        "t", uuid.uuid4(), (PartitionRecord((1,), 1, 0, (1,)),), {"cleanup.policy": "compact"}
    )
    config = TopicConfig(BrokerConfig(), topic.config)
    return Partition(topic, 0, log, config, AppendQueue(RequestMemory(1 << 20)))


async def test_records_of_a_large_batch_are_read_on_the_loop_only_for_a_coordinator(
    partition: Partition,
) -> None:
    large = batch(AT_ONCE_BYTES // 8)
    assert len(large) > AT_ONCE_BYTES
    appended = partition.append(memoryview(bytearray(large)), NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert isinstance(appended, AppendInfo)
    queued = partition.append(large, NOW_MS, origin=AppendOrigin.CLIENT)
    assert isinstance(queued, DelayedProduce)
    assert queued.info is None
    await queued
    assert queued.info is not None


async def test_batches_keep_their_origins_in_the_append_queue(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[AppendOrigin] = []
    append_validated = Log.append_validated

    def noting(log: Log, validated: validator.Validated, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        written.append(validated[3])
        return append_validated(log, validated, leader_epoch=leader_epoch, now_ms=now_ms)

    monkeypatch.setattr(Log, "append_validated", noting)
    first = partition.append(batch(AT_ONCE_BYTES // 8), NOW_MS)
    second = partition.append(batch(), NOW_MS, origin=AppendOrigin.COORDINATOR)
    assert isinstance(first, DelayedProduce)
    assert isinstance(second, DelayedProduce)
    await first
    await second
    assert written == [AppendOrigin.CLIENT, AppendOrigin.COORDINATOR]


def test_batches_of_another_log_keep_their_offsets_and_epochs(log: Log) -> None:
    placed = batch(base_offset=7, leader_epoch=3)
    log.append_validated(validator.validate_mirrored(placed, 0, -1), leader_epoch=9, now_ms=NOW_MS)
    log.append_as_follower(batch(base_offset=20, leader_epoch=4), now_ms=NOW_MS)
    log.append(batch(), leader_epoch=9, now_ms=NOW_MS)
    headers = list(log.segments.headers_from(0))
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [
        (7, 3),
        (20, 4),
        (21, 9),
    ]
