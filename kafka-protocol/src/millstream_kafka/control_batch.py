"""Control batches: the markers that end a transaction in a partition (KIP-98).

A control batch has one record, written by a broker. Consumers skip it; readers of committed records learn from it
whether the transaction counts. All integers are big-endian:

    key     version i16 (0) | type i16: 0 abort, 1 commit
    value   version i16 (0) | coordinator epoch i32

The batch has the attributes *transactional* and *control*, the producer's id and epoch, and no sequence.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .batch import Buffer, Record, build_batch, read_header, read_records
from .protocol.errors import ApiError

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class EndTransactionMarker(NamedTuple):
    committed: bool
    coordinator_epoch: int
    """The epoch of the transaction coordinator that has ended the transaction."""


def build_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch with this marker."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(key, value, timestamp)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a whole control batch; None if it has none.

    That is a batch whose record compaction has removed, a control record of another type, or one that cannot be read.
    """
    if not read_header(batch).record_count:
        return None
    try:
        record = next(read_records(batch))
    except ApiError:
        return None
    kind, value = _kind(record), record.value
    if kind not in (_ABORT, _COMMIT) or value is None or len(value) < _VALUE.size:
        return None
    value_version, coordinator_epoch = _VALUE.unpack_from(value)
    return None if value_version < 0 else EndTransactionMarker(kind == _COMMIT, coordinator_epoch)


def is_abort(record: Record) -> bool:
    """Whether the record of a control batch aborts a transaction: its key decides, as for Kafka's consumers."""
    return _kind(record) == _ABORT


def _kind(record: Record) -> int:
    """The type in the key of a control record, -1 without one."""
    if record.key is None or len(record.key) < _KEY.size:
        return -1
    version, kind = _KEY.unpack_from(record.key)
    return int(kind) if version >= 0 else -1
