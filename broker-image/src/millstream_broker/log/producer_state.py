"""A log's memory of its idempotent producers, so that a retried batch is stored once (KIP-98).

For each producer id: its epoch and its last five batches (a client has at most five in flight). A batch is then

    a duplicate              same epoch, and exactly the sequences of one of the five: the response has its offsets
    INVALID_PRODUCER_EPOCH   an epoch below the known one: a zombie
    OUT_OF_ORDER_SEQUENCE…   not the next sequence; in a new epoch: not sequence 0
    accepted                 otherwise. An unknown producer may start anywhere: its past may have expired

Records of a transaction (``transactions``) come from the producer's first transactional batch on, up to a marker, which
its coordinator writes. Meanwhile, the producer may send nothing else. A marker may have a higher epoch, which fences
the producer, and is refused if a newer coordinator has written one, or if its epoch is too low.

A producer is forgotten after it was idle for ``producer.id.expiration.ms``, unless its transaction is open. (Kafka
compares the clock with record timestamps here, so it forgets producers of old events at once; we take the time of the
append.) If the state is rebuilt from batches, that time is not in the log: it is the one remembered until then, or else
the time of rebuilding, because the retries of a producer that is forgotten too early are stored twice.

``%020d.snapshot`` keeps the state as of the offset in its name, in Kafka's format, all integers big-endian:

    version i16 (1) | CRC-32C of the rest u32 | count i32 | count × entry
    entry: producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
           coordinator epoch i32, first offset of the open transaction i64

A snapshot has an entry for each of the five batches, oldest first, because a client may resend any of them after a
restart. Kafka writes one per producer, and takes the last of several. On opening, the newest valid snapshot is loaded
and the later batch headers are replayed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from crc32c import crc32c

from millstream_kafka.appendable import BY_BROKER
from millstream_kafka.batch import INT32_MAX, NO_PRODUCER, BatchHeader, advance_sequence
from millstream_kafka.control_batch import EndTransactionMarker
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .append_origin import COORDINATOR, AppendOrigin
from .files import write_atomically
from .transactions import EndedTransaction, Transactions
from .verifications import Verifications

KEPT_BATCHES = 5
LATE_BUFFER_MS = 300_000
"""Kafka's: a transaction is late after the longest timeout and this, when its coordinator has long aborted it."""
LARGEST_EPOCH = 0x7FFF
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1


class SnapshotError(ValueError):
    """A producer snapshot is not valid."""


class AppendedBatch(NamedTuple):
    """A batch in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


NO_BATCH = AppendedBatch(-1, -1, -1, -1, -1)


@dataclass(slots=True)
class ProducerStateEntry:
    epoch: int
    last_seen_ms: int
    batches: list[AppendedBatch] = field(default_factory=list)  # the last five, oldest first
    coordinator_epoch: int = -1
    """That of the last marker."""
    transaction_first_offset: int = -1
    """The first offset of the open transaction; -1 without one."""
    marked_ms: int = -1
    """The timestamp of the producer's last marker, if no batch has followed it."""
    generation: int = 0
    """The :class:`ProducerStateManager` generation that may change it: see :meth:`ProducerStateManager.frozen`."""

    @property
    def last(self) -> AppendedBatch:
        """The latest batch; NO_BATCH while only the epoch is known."""
        return self.batches[-1] if self.batches else NO_BATCH

    @property
    def last_timestamp(self) -> int:
        """That of the latest batch or marker; -1 while only the epoch is known."""
        return self.marked_ms if self.marked_ms >= 0 else self.last.timestamp

    def find(self, header: BatchHeader) -> AppendedBatch | None:
        """The batch with exactly these sequences, if it is one of the last five."""
        if header.producer_epoch == self.epoch:
            for batch in self.batches:
                if (
                    batch.first_sequence == header.base_sequence
                    and batch.last_sequence == header.last_sequence
                ):
                    return batch
        return None

    def add(self, header: BatchHeader, now_ms: int) -> None:
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches = []
        self.last_seen_ms = now_ms
        if header.is_control:  # a transaction marker has no sequence
            self.marked_ms = header.max_timestamp
            return
        self.marked_ms = -1
        if header.is_transactional and self.transaction_first_offset < 0:
            self.transaction_first_offset = header.base_offset
        self.batches.append(
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )
        del self.batches[:-KEPT_BATCHES]


class ProducerStateManager:
    __slots__ = ("_generation", "by_id", "transactions", "verifications")

    def __init__(self) -> None:
        self.by_id: dict[int, ProducerStateEntry] = {}
        self.transactions = Transactions()
        self.verifications = Verifications()
        self._generation = 0

    def frozen(self) -> ProducerStateManager:
        """An immutable view of the producers, for another thread: each is copied before its next change."""
        copy = ProducerStateManager()
        copy.by_id = self.by_id.copy()
        self._generation += 1
        return copy

    def check(
        self, headers: Sequence[BatchHeader], origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendedBatch | None:
        """The batch stored earlier, for a duplicate; None if ``headers`` may be appended; otherwise ApiError."""
        # Epoch and last sequence of each producer after the previous batches of this append.
        moved: dict[int, tuple[int, int]] = {}
        began: set[int] = set()
        repeated: list[AppendedBatch] = []
        for header in headers:
            producer_id = header.producer_id
            if producer_id == NO_PRODUCER:
                continue
            known = self.by_id.get(producer_id)
            if origin is not COORDINATOR and known is not None and (stored := known.find(header)) is not None:
                repeated.append(stored)
                continue
            if header.is_transactional:
                self._check_transaction(header, known)
            if producer_id in moved:
                self._check_sequence(header, *moved[producer_id], origin)
            elif known is not None:
                self._check_sequence(header, known.epoch, known.last.last_sequence, origin)
            if header.is_transactional:
                began.add(producer_id)
            elif producer_id in began or (known is not None and known.transaction_first_offset >= 0):
                raise ApiError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {producer_id} has an open transaction: its batches must be transactional",
                )
            moved[producer_id] = (header.producer_epoch, header.last_sequence)
        if not repeated:
            return None
        if len(repeated) < len(
            headers
        ):  # neither "stored before" nor "stored now" would be true of all of them
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {headers[0].producer_id}: {len(repeated)} of {len(headers)} batches were stored before",
            )
        first, last = repeated[0], repeated[-1]
        return AppendedBatch(
            first.first_sequence, last.last_sequence, first.first_offset, last.last_offset, last.timestamp
        )

    def expects(self, producer_id: int, epoch: int, sequence: int, last_offset_delta: int) -> bool:
        """Whether a batch certainly is a known producer's next one, and no repeated one: `check` accepts it."""
        known = self.by_id.get(producer_id)
        if known is None or known.epoch != epoch or known.transaction_first_offset >= 0 or not known.batches:
            return False
        batches = known.batches
        return (
            sequence == batches[-1].last_sequence + 1
            and sequence + last_offset_delta <= INT32_MAX
            and batches[0].first_sequence <= sequence
        )

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction, and this epoch."""
        known = self.by_id.get(producer_id)
        return known is not None and known.transaction_first_offset >= 0 and known.epoch == epoch

    def has_later_epoch(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer's last batch or marker has a later epoch."""
        known = self.by_id.get(producer_id)
        return known is not None and epoch < known.epoch

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether the oldest open transaction got its last batch so long ago that nobody will end it.

        Kafka compares the batch's timestamp, which the producer chooses.
        """
        oldest = self.transactions.oldest
        return (
            oldest is not None and now_ms - self.by_id[oldest].last_seen_ms > max_timeout_ms + LATE_BUFFER_MS
        )

    def _check_transaction(self, header: BatchHeader, known: ProducerStateEntry | None) -> None:
        """ApiError unless the transaction is open here, or its coordinator has confirmed it."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self.is_open(producer_id, epoch):
            return
        guard = self.verifications.check(producer_id, epoch)
        sequence = header.base_sequence
        is_first = sequence <= guard.lowest_sequence
        if sequence > 0 and (not is_first or (guard.bumps_epoch and (known is None or not known.batches))):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id}, epoch {epoch}: sequence {sequence} is not the first of the transaction",
            )

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker, origin: AppendOrigin) -> None:
        """ApiError unless a transaction coordinator may append this marker.

        A marker of the next epoch must have one, unless it repeats one that has ended the transaction. The largest
        epoch has no next one.
        """
        if (known := self.by_id.get(header.producer_id)) is None:
            return
        who, epoch = f"producer {header.producer_id}", header.producer_epoch
        is_repeated = known.transaction_first_offset < 0 or epoch == LARGEST_EPOCH
        must_rise = origin is AppendOrigin.MARKER_OF_NEXT_EPOCH and not is_repeated
        if epoch < known.epoch + must_rise:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{who}: a marker of epoch {epoch}, the last batch has epoch {known.epoch}",
            )
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"{who}: a marker of coordinator epoch {marker.coordinator_epoch}, the last one has epoch"
                f" {known.coordinator_epoch}",
            )

    @staticmethod
    def _check_sequence(header: BatchHeader, epoch: int, last_sequence: int, origin: AppendOrigin) -> None:
        who = f"producer {header.producer_id}"
        if header.producer_epoch < epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"{who}: epoch {header.producer_epoch} is before {epoch}"
            )
        if origin is COORDINATOR:  # its batches have none
            return
        expected = 0 if header.producer_epoch > epoch else advance_sequence(last_sequence, 1)
        if header.base_sequence != expected:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{who}, epoch {header.producer_epoch}: sequence {header.base_sequence}, expected {expected}",
            )

    def update(
        self, header: BatchHeader, now_ms: int, marker: EndTransactionMarker | None = None
    ) -> EndedTransaction | None:
        """Remember a batch that is now in the log, with its final offsets. Returns the transaction that it ends.

        ``marker`` is that of a control batch.
        """
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            producer = ProducerStateEntry(header.producer_epoch, now_ms, generation=self._generation)
            self.by_id[header.producer_id] = producer
        elif producer.generation != self._generation:
            producer = replace(producer, batches=producer.batches.copy(), generation=self._generation)
            self.by_id[header.producer_id] = producer
        first = producer.transaction_first_offset
        producer.add(header, now_ms)
        if not header.attributes & BY_BROKER:
            return None
        self.verifications.end(header.producer_id)
        if marker is None:
            if first < 0 <= producer.transaction_first_offset:
                self.transactions.begin(header.base_offset, header.producer_id)
            return None
        producer.coordinator_epoch, producer.transaction_first_offset = marker.coordinator_epoch, -1
        if first < 0:
            return None
        return self.transactions.end(
            first, header.producer_id, header.last_offset, committed=marker.committed
        )

    def keep_last_seen(self, earlier: ProducerStateManager) -> None:
        """After this state was rebuilt, take the times of producers' last appends from ``earlier``, of the same log."""
        for producer_id, producer in self.by_id.items():
            if (known := earlier.by_id.get(producer_id)) is not None:
                producer.last_seen_ms = known.last_seen_ms

    def expire(self, before_ms: int) -> int:
        """Forget producers last seen before ``before_ms``; return their number."""
        idle = [
            producer_id
            for producer_id, producer in self.by_id.items()
            if producer.last_seen_ms < before_ms and producer.transaction_first_offset < 0
        ]
        for producer_id in idle:
            del self.by_id[producer_id]
        return len(idle)

    # -- snapshots --------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        data, count = bytearray(), 0
        for producer_id, producer in self.by_id.items():
            for batch in producer.batches or [NO_BATCH]:
                count += 1
                data += _ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.last_offset - batch.first_offset,
                    producer.last_seen_ms,
                    producer.coordinator_epoch,
                    producer.transaction_first_offset,
                )
        data[:0] = _COUNT.pack(count)
        return _HEAD.pack(_VERSION, crc32c(data)) + data

    @classmethod
    def decode(cls, data: bytes) -> ProducerStateManager:
        """SnapshotError unless ``data`` is a whole snapshot of version 1."""
        start = _HEAD.size + _COUNT.size
        if len(data) < start:
            raise SnapshotError(f"{len(data)} bytes")
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
        if (
            version != _VERSION
            or len(data) != start + count * _ENTRY.size
            or crc != crc32c(data[_HEAD.size :])
        ):
            raise SnapshotError(f"version {version}, {count} entries, {len(data)} bytes, or its CRC is wrong")
        producers = cls()
        for entry in _ENTRY.iter_unpack(data[start:]):
            producer_id, epoch, last_sequence, last_offset, delta, seen, coordinator_epoch, transaction = (
                entry
            )
            producer = producers.by_id.get(producer_id)
            if producer is None or producer.epoch != epoch:
                producer = producers.by_id[producer_id] = ProducerStateEntry(
                    epoch, seen, [], coordinator_epoch, transaction
                )
            producer.coordinator_epoch, producer.transaction_first_offset = coordinator_epoch, transaction
            if last_offset >= 0:
                first_sequence = advance_sequence(last_sequence, -delta)
                producer.batches.append(
                    AppendedBatch(first_sequence, last_sequence, last_offset - delta, last_offset, seen)
                )
            elif coordinator_epoch >= 0:
                producer.marked_ms = seen
        producers.transactions = Transactions(
            (producer.transaction_first_offset, producer_id)
            for producer_id, producer in producers.by_id.items()
            if producer.transaction_first_offset >= 0
        )
        return producers

    def save(self, path: str) -> None:
        """Blocking. OSError. Without fsync, which ``durability`` does."""
        write_atomically(path, self.encode(), sync=False)
