"""Appends the markers with which a transaction coordinator ends a transaction in a partition (WriteTxnMarkers)."""

from __future__ import annotations

from time import time

from millstream_kafka.control_batch import EndTransactionMarker, build_marker

from ..log.append_origin import AppendOrigin
from .partition import Partition
from .purgatory import DelayedProduce

EPOCH_RISES_SINCE = 2
"""The first transaction.version in which each end of a transaction raises the producer's epoch (KIP-890)."""


async def append_marker(
    partition: Partition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    *,
    committed: bool,
    transaction_version: int,
) -> None:
    """End a producer's transaction; returns when all in-sync replicas have the marker.

    Raises ApiError: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH (`ProducerStateManager.check_marker`), and
    those of `Partition.append`.
    """
    now_ms = int(time() * 1000)
    batch = build_marker(
        EndTransactionMarker(committed, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp=now_ms,
    )
    rises = transaction_version >= EPOCH_RISES_SINCE
    origin = AppendOrigin.MARKER_OF_NEXT_EPOCH if rises else AppendOrigin.MARKER
    appended = partition.append(memoryview(bytearray(batch)), now_ms, origin=origin)
    if isinstance(appended, DelayedProduce):
        await appended
