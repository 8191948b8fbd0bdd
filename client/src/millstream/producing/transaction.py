"""Transactions of a producer: all records of one, and a group's positions, become visible together or not at all.

librdkafka implements Kafka's transactions. Its calls are made in short slices, because none of them can be interrupted,
and a call that has timed out continues where it was. Its errors say what may follow: the same call again, an abort, or
nothing, for a producer that was fenced.

A transaction that takes messages from a stream ends with the positions after them. If it is aborted, the stream returns
to the positions before them. The coordinator of the group refuses the positions of a stream that is no longer a member;
a stream that has lost partitions since the transaction began is refused here. If nobody knows whether a commit has
happened, the stream may be neither before nor after its messages: it takes part in no further transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from confluent_kafka import KafkaError, KafkaException

from millstream.connection import failed
from millstream.errors import BadInput, Failed, MillstreamError, NotOwned, ProducerFenced, Unreachable

if TYPE_CHECKING:
    from millstream.consuming.stream import MessageStream

SLICE_S: Final = 0.5
FENCED: Final = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
NOT_A_MEMBER: Final = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)


class Flushing(Protocol):
    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for all records; NotDelivered."""


class Transactions:
    """The transactions of one producer, one after the other."""

    def __init__(self, kafka: Any, transactional_id: str, timeout_s: float) -> None:
        self._kafka = kafka
        self._id = transactional_id
        self._timeout_s = timeout_s
        self.is_open = False
        self.is_unknown = False
        """Whether the last commit may have happened, or not."""
        self._ended_by: MillstreamError | None = None  # why it can begin no transaction any more

    def start(self) -> None:
        """Fence earlier producers of this transactional id; their transaction is aborted. Unreachable, Failed."""
        self._call(f"transactional id {self._id} cannot be used", self._kafka.init_transactions)

    def begin(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by
        if self.is_open:
            raise BadInput("transaction: one is open already", "end it first; a producer has one at a time")
        self._call("no transaction can begin", lambda _: self._kafka.begin_transaction())
        self.is_open = True

    def add_positions(self, positions: list[Any], member: Any) -> None:
        """Commit a group's positions with the transaction. NotOwned; Failed."""
        self._call(
            "the positions cannot be added to the transaction",
            lambda timeout_s: self._kafka.send_offsets_to_transaction(positions, member, timeout_s),
        )

    def commit(self) -> None:
        """Afterwards, `is_unknown` may hold."""
        self.is_unknown = True
        self._call("it is not known whether the transaction was committed", self._kafka.commit_transaction)
        self.is_open = self.is_unknown = False

    def abort(self) -> None:
        """Remove its records for readers of committed ones. A producer that was fenced has nothing to abort."""
        was_open, self.is_open = self.is_open, False
        if self.is_unknown:
            self._ended_by = self._ended_by or Failed(
                "the commit of this producer's last transaction was interrupted", "create another producer"
            )
        elif was_open and self._ended_by is None:
            self._call("the transaction was not aborted", self._kafka.abort_transaction)

    def _call(self, problem: str, call: Callable[[float], Any]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                call(SLICE_S)
            except KafkaException as refusal:
                error = refusal.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    continue
                if error.txn_requires_abort():
                    self.is_unknown = False
                    problem = "the transaction was not committed"
                raise self._ended(problem, refusal) from None
            else:
                return

    @property
    def is_over(self) -> bool:
        """Whether this producer can begin no transaction any more."""
        return self._ended_by is not None

    def _ended(self, problem: str, refusal: KafkaException) -> MillstreamError:
        error = refusal.args[0]
        if not error.retriable():
            return self.explained(problem, refusal)
        self._ended_by = Unreachable(
            f"{problem}: no answer within {self._timeout_s:g} s ({error.str()})",
            "close the producer and connect again; the next producer with its transactional_id ends the transaction",
        )
        return self._ended_by

    def explained(self, problem: str, refusal: KafkaException) -> MillstreamError:
        """Our error for librdkafka's."""
        error = refusal.args[0]
        if error.code() in FENCED:
            self._ended_by = ProducerFenced(
                f"another producer has begun with transactional_id={self._id!r}, or this one's transaction timed out",
                "a transaction that was open is aborted; close this producer, and create another one; give each "
                "process that runs at the same time a transactional_id of its own",
            )
            return self._ended_by
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return BadInput(
                f"transaction_timeout_s: {self._timeout_s:g} is longer than the brokers allow",
                "write less, or raise their transaction.max.timeout.ms",
            )
        if error.code() in NOT_A_MEMBER:
            return NotOwned(
                "the transaction was not committed: the group has rebalanced",
                "it is aborted, and its messages are processed again",
            )
        found = failed(refusal)
        if not error.fatal() and error.code() != KafkaError._FATAL:
            return Failed(f"{problem}: {found.problem}", found.next_step, retriable=found.retriable)
        self._ended_by = self._ended_by or Failed(
            f"{problem}: {found.problem}", "close the producer, and create another one"
        )
        return self._ended_by


class Transaction:
    """Commits at the end of the block; aborts if the block or the commit fails. Created by `Producer.transaction`."""

    def __init__(self, producer: Flushing, transactions: Transactions, stream: MessageStream | None) -> None:
        self._producer, self._transactions, self._stream = producer, transactions, stream
        self._losses = 0

    def __enter__(self) -> Self:
        self._transactions.begin()
        if self._stream is not None:
            self._stream.has_transactions = True
            self._losses = self._stream.losses
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            try:
                self._abort()
            except MillstreamError as problem:
                error.add_note(str(problem))
            return
        try:
            self._commit()
        except BaseException as failure:
            try:
                self._abort()
            except MillstreamError as problem:
                failure.add_note(str(problem))
            raise

    def _commit(self) -> None:
        self._producer.flush()
        if (stream := self._stream) is None:
            self._transactions.commit()
            return
        with stream.turns:
            if stream.losses != self._losses:
                raise NotOwned(
                    "the transaction was not committed: the stream has lost partitions since it began",
                    "it is aborted, and their messages are processed again",
                )
            positions, member = stream.to_commit()
            if positions:
                self._transactions.add_positions(positions, member)
            self._transactions.commit()
            stream.committed_by_producer(positions)

    def _abort(self) -> None:
        try:
            self._transactions.abort()
        finally:
            with contextlib.suppress(MillstreamError):  # records that the abort has taken back
                self._producer.flush()
            if self._stream is not None and self._transactions.is_unknown:
                self._stream.end_transactions()
            elif self._stream is not None:
                self._stream.rewind()
