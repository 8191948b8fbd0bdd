"""The state of a transactional id, and its transitions; nothing here writes, waits or knows the time.

    Empty ──add──► Ongoing ──end, time-out, new producer──► PrepareCommit, PrepareAbort
      ▲             ▲                                            │ all markers are written
      │ init        └────────add──── CompleteCommit, ◄───────────┘
      └───────────────────────────── CompleteAbort

``Dead`` is an expired id whose tombstone is being written. ``PrepareEpochFence`` exists in Kafka between two steps that
are one here. A producer is a pair of id and epoch. In version 2 of transactions (KIP-890) the end of each transaction
raises the epoch; in the versions before only a new producer, or a time-out, does.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

NO_PRODUCER_ID = NO_PRODUCER_EPOCH = -1
MAX_EPOCH = 32_767
"""Markers may have it, producers may not: so any producer can be fenced."""
LAST_EPOCH = MAX_EPOCH - 1
"""The last epoch of a producer id that a producer gets."""
NO_START = -1
EPOCH_IS_RAISED_SINCE = 2
"""The first version of transactions in which each end raises the epoch."""


class TransactionState(enum.Enum):
    """States with Kafka's numbers and names."""

    label: str

    def __new__(cls, number: int, label: str) -> TransactionState:
        member = object.__new__(cls)
        member._value_ = number
        member.label = label
        return member

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is fixed, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """What the log stores of a transactional id; timestamps are milliseconds since the epoch."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    """-1 until the first write."""
    timeout_ms: int = 0
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = field(default_factory=frozenset)
    start_timestamp: int = NO_START
    """When the last transaction began."""
    update_timestamp: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last transition."""
    next_producer_id: int = NO_PRODUCER_ID
    """While a transaction ends: the producer id that follows, with epoch 0."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last rise that the producer itself requested; not in the log."""
    client_version: int = 0
    """The version of transactions that the producer used last."""

    @property
    def raises_epoch(self) -> bool:
        return self.client_version >= EPOCH_IS_RAISED_SINCE

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no more epochs for producers."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def commits(self) -> bool:
        """Whether the transaction that ends, or ended, is committed."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def is_timed_out(self, now: int) -> bool:
        return self.state is ONGOING and self.start_timestamp + self.timeout_ms < now

    def is_expired(self, now: int, expiration_ms: int) -> bool:
        """Whether the transactional id has been idle for so long."""
        is_idle = self.state is EMPTY or self.state.is_complete
        return is_idle and self.update_timestamp + expiration_ms <= now

    # ---- transitions

    def initialised(
        self, timeout_ms: int, expected_epoch: int | None, now: int, new_producer_id: int
    ) -> TransactionMetadata:
        """For a producer that starts. Raises ApiError PRODUCER_FENCED.

        With `expected_epoch` the same producer continues after an error (KIP-360). `new_producer_id` is used
        if the id has no more epochs.
        """
        emptied = replace(
            self,
            previous_producer_id=self.producer_id,
            timeout_ms=timeout_ms,
            state=EMPTY,
            partitions=frozenset(),
            start_timestamp=NO_START,
            update_timestamp=now,
        )
        if self.is_exhausted and expected_epoch in (None, self.producer_epoch):
            last = NO_PRODUCER_EPOCH if expected_epoch is None else self.producer_epoch
            return replace(emptied, producer_id=new_producer_id, producer_epoch=0, last_producer_epoch=last)
        if expected_epoch is None:
            last = NO_PRODUCER_EPOCH
        elif self.producer_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
            last = self.producer_epoch
        elif expected_epoch == self.last_producer_epoch:  # a retry: nobody else has started since
            return emptied
        else:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        return replace(emptied, producer_epoch=self.producer_epoch + 1, last_producer_epoch=last)

    def with_partitions(
        self, added: Iterable[TopicPartition], client_version: int, now: int
    ) -> TransactionMetadata:
        return replace(
            self,
            previous_producer_id=self.producer_id,
            state=ONGOING,
            partitions=self.partitions.union(added),
            start_timestamp=self.start_timestamp if self.state is ONGOING else now,
            update_timestamp=now,
            client_version=client_version,
        )

    def ending(
        self, *, commits: bool, client_version: int, new_producer_id: int, now: int
    ) -> TransactionMetadata:
        """The outcome is fixed. `new_producer_id` is used if the epoch rises, and the id has no more epochs."""
        ended = replace(
            self,
            previous_producer_id=self.producer_id,
            state=TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT,
            start_timestamp=self.start_timestamp if self.state is ONGOING else now,
            update_timestamp=now,
            client_version=client_version,
        )
        if client_version < EPOCH_IS_RAISED_SINCE:
            return ended
        return replace(
            ended,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch,
            next_producer_id=new_producer_id if self.is_exhausted else NO_PRODUCER_ID,
        )

    def fenced(self, *, server_version: int, new_producer_id: int, now: int) -> TransactionMetadata:
        """The coordinator aborts the transaction: its producer gets an error from now on."""
        ended = self.ending(
            commits=False, client_version=server_version, new_producer_id=new_producer_id, now=now
        )
        if server_version >= EPOCH_IS_RAISED_SINCE:
            return ended
        return replace(ended, producer_epoch=self.producer_epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)

    def completed(self, now: int) -> TransactionMetadata:
        """All markers are written."""
        done = replace(
            self,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=TransactionState.COMPLETE_COMMIT if self.commits else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            update_timestamp=now,
        )
        if self.raises_epoch and self.next_producer_id != NO_PRODUCER_ID:
            return replace(done, producer_id=self.next_producer_id, producer_epoch=0)
        return done
