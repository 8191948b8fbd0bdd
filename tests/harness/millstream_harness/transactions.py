"""Records of transactions, written to a partition without a coordinator."""

from __future__ import annotations

import time

from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.replication.markers import append_marker
from millstream_broker.replication.partition import Partition
from millstream_kafka.batch import build_batch

from .wire import record


def write(
    partition: Partition,
    producer: int,
    sequence: int = 0,
    count: int = 1,
    *,
    epoch: int = 0,
    value: str = "v",
    timestamp: int | None = None,
) -> AppendInfo:
    """Append a batch of a transaction, which begins if it is not open."""
    producers = partition.log.producers
    if not producers.is_open(producer, epoch):
        verifications = producers.verifications
        verifications.verified(verifications.begin(producer, epoch, sequence, bumps_epoch=False))
    batch = build_batch(
        [record(value, timestamp=timestamp)] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    now_ms = int(time.time() * 1000)
    appended = partition.append(memoryview(bytearray(batch)), now_ms, acks=1, origin=AppendOrigin.TRANSACTION)
    assert isinstance(appended, AppendInfo)
    return appended


async def finish(partition: Partition, producer: int, *, committed: bool, epoch: int = 0) -> None:
    """End the producer's transaction."""
    await append_marker(partition, producer, epoch, 0, committed=committed, transaction_version=1)
