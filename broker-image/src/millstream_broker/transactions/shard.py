"""The transaction coordinator: a state machine without sockets, clock or files. Event in, replies and effects out.

A change of a transactional id is written to __transaction_state first, and happens when it is stored. In the meantime
the id is pending: other requests for it get CONCURRENT_TRANSACTIONS, which producers retry. A write that is late keeps
the id pending: it may still be stored, and only the next load can tell otherwise.

The end of a transaction is two changes. The first fixes the outcome, and its caller gets the reply. Then a marker is
written to each partition, and the second change completes the transaction. A coordinator that loads an id between the
two continues with its markers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from millstream_kafka.batch import Buffer
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..coordinator.effects import Caller
from ..coordinator.state import CoordinatorState
from .checks import Producer, check_end, check_init, check_producer, verify
from .messages import (
    SERVER_VERSION,
    Markers,
    MarkerSender,
    ProducerResult,
    TransactionConfig,
    TransactionDescription,
)
from .records import LoadedTransactions, read_transactions, transaction_record
from .transaction import NO_PRODUCER_ID, ONGOING, TransactionMetadata, TransactionState

RETRY_MS = 500
"""Pause before the completion of a transaction is written again."""
SWEPT = 250
"""Transactional ids that are looked at in a row: a broker may have a million."""

_TIME_OUTS, _EXPIRY = ("time-outs", ""), ("expiry", "")
_COMPLETION = "completion"

TimerKey = tuple[str, str]
"""(kind, transactional id or "")."""


@dataclass(slots=True)
class Transaction:
    """A transactional id that this broker coordinates."""

    metadata: TransactionMetadata
    pending: TransactionState | None = None
    """The state that is being written."""
    unmarked: set[TopicPartition] = field(default_factory=set)
    """While a transaction ends: the partitions that have no marker yet."""


class TransactionCoordinatorShard:
    """`coordinator.runtime.Shard`."""

    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: Callable[[], int],
        markers: MarkerSender,
        server_version: int = SERVER_VERSION,
    ) -> None:
        self._config = config
        self._new_producer_id = new_producer_id
        self._markers = markers
        self._server_version = server_version
        self.state: CoordinatorState[TimerKey] = CoordinatorState(config.transaction_state_log_num_partitions)
        self.by_id: dict[str, Transaction] = {}
        self._ids: defaultdict[int, set[str]] = defaultdict(set)
        """By partition of __transaction_state."""
        self._sweeps: dict[TimerKey, Iterator[str]] = {}
        """The ids that are left of a check for time-outs or expiry."""
        self._epochs: dict[int, int] = {}
        """Leader epochs of the partitions of __transaction_state that this broker leads."""
        self._set_timer(_TIME_OUTS)
        self._set_timer(_EXPIRY)

    # ---- time

    def advance(self, now: int, wall_clock: int) -> None:
        """Set the time, in milliseconds of a monotonic clock, and handle everything due."""
        for key in self.state.advance(now, wall_clock):
            if key in (_TIME_OUTS, _EXPIRY):
                self._sweep(key)
            else:
                self._complete(key[1])

    def next_deadline(self) -> int | None:
        """The latest time for the next call of ``advance``."""
        return self.state.timers.earliest()

    def _set_timer(self, key: TimerKey) -> None:
        config = self._config
        interval_ms = (
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            if key == _TIME_OUTS
            else config.transaction_remove_expired_transaction_cleanup_interval_ms
        )
        self.state.timers.set(key, self.state.now + interval_ms)

    # ---- partitions of __transaction_state

    def set_epoch(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition, in this epoch; call it before the load.

        It may have led it in an earlier epoch, and missed that another coordinator led between the two. That one can
        have changed nothing, because this broker has been in the ISR; but markers of its epoch refuse earlier ones.
        """
        known = self._epochs.get(partition)
        self._epochs[partition] = leader_epoch
        if known == leader_epoch or not self.state.is_active(partition):
            return
        self._markers.forget(partition)
        for transactional_id in list(self._ids[partition]):
            transaction = self.by_id[transactional_id]
            if transaction.unmarked:
                self._send_markers(transactional_id, transaction)

    def reader(self, partition: int) -> Callable[[Iterable[Buffer]], LoadedTransactions]:
        """The function that reads a partition's batches, for use in a thread."""
        return partial(read_transactions, partition=partition, partitions=self.state.partition_count)

    def loaded(self, partition: int, loaded: LoadedTransactions) -> None:
        """Take what the partition's log contains, and continue with transactions that were ending."""
        if self.state.is_active(partition):
            return  # loaded twice at once: changes since the first load count
        self.state.loaded(partition)
        for transactional_id, metadata in loaded.transactions.items():
            transaction = Transaction(metadata)
            self._keep(transactional_id, transaction)
            if metadata.state.is_ending:
                self._send_markers(transactional_id, transaction)

    def unload(self, partition: int) -> None:
        """Another coordinator has the partition now: forget its ids, and redirect waiting callers."""
        self.state.unloading(partition)
        self._markers.forget(partition)
        self._epochs.pop(partition, None)
        for transactional_id in self._ids.pop(partition, ()):
            del self.by_id[transactional_id]
            self.state.timers.cancel((_COMPLETION, transactional_id))
        self.state.unloaded(partition)

    def answer_all(self, error: ErrorCode) -> None:
        """Callers wait only for writes, which end."""

    def _keep(self, transactional_id: str, transaction: Transaction) -> None:
        self.by_id[transactional_id] = transaction
        self._ids[self.state.partition_of(transactional_id)].add(transactional_id)

    def _forget(self, transactional_id: str) -> None:
        del self.by_id[transactional_id]
        self._ids[self.state.partition_of(transactional_id)].discard(transactional_id)

    # ---- requests of producers

    def init_producer_id(
        self, caller: Caller, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> None:
        """A producer starts, or continues as `expected` after an error. The reply is a ``ProducerResult``."""
        reply = self.state.replier(caller)
        try:
            transaction = self._to_start(transactional_id, timeout_ms, expected)
            found = transaction.metadata
            if found.state is ONGOING:  # it is aborted first; the client tries again, and gets a higher epoch
                self._fence(
                    transactional_id,
                    transaction,
                    lambda error: reply(
                        ProducerResult(coordinator_error(error) or ErrorCode.CONCURRENT_TRANSACTIONS)
                    ),
                )
                return
            started = found.initialised(
                timeout_ms,
                None if expected is None else expected[1],
                self.state.wall_clock,
                self._new_producer_id() if found.is_exhausted else NO_PRODUCER_ID,
            )
        except ApiError as refusal:
            reply(ProducerResult(refusal.code))
            return

        def stored(error: ErrorCode) -> None:
            if error:
                reply(ProducerResult(coordinator_error(error)))
            else:
                reply(ProducerResult(error, started.producer_id, started.producer_epoch))

        self._keep(transactional_id, transaction)
        self._change(transactional_id, transaction, started, stored)

    def _to_start(self, transactional_id: str, timeout_ms: int, expected: Producer | None) -> Transaction:
        """The transaction of a producer that may start, perhaps a new one. Raises ApiError."""
        error = ErrorCode.NONE
        if not transactional_id:
            error = ErrorCode.INVALID_REQUEST
        elif not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            error = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        error = error or self.state.unavailable(transactional_id)
        if error:
            raise ApiError(error)
        transaction = self.by_id.get(transactional_id)
        if transaction is None:
            return Transaction(TransactionMetadata(self._new_producer_id()))
        if transaction.pending is not None:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if error := check_init(transaction.metadata, expected):
            raise ApiError(error)
        return transaction

    def add_partitions(
        self,
        caller: Caller,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        client_version: int,
    ) -> None:
        """The reply is an error code for all partitions."""
        error, transaction = self._find(transactional_id)
        if transaction is None or (error := check_producer(transaction.metadata, producer)):
            self.state.reply(caller, error)
            return
        found = transaction.metadata
        if found.state is ONGOING and found.partitions.issuperset(partitions):
            self.state.reply(caller, ErrorCode.NONE)
            return
        added = found.with_partitions(partitions, client_version, self.state.wall_clock)
        reply = self.state.replier(caller)
        self._change(transactional_id, transaction, added, lambda error: reply(coordinator_error(error)))

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether each partition is part of the producer's transaction."""
        error, transaction = self._find(transactional_id)
        if transaction is None:
            return dict.fromkeys(partitions, error)
        return verify(transaction.metadata, producer, partitions)

    def end(
        self, caller: Caller, transactional_id: str, producer: Producer, *, commits: bool, raises_epoch: bool
    ) -> None:
        """Commit or abort. The reply is a ``ProducerResult``, as soon as the outcome is stored."""
        error, transaction = self._find(transactional_id)
        if transaction is None:
            self.state.reply(caller, ProducerResult(error))
            return
        found = transaction.metadata
        refusal = check_end(found, producer, commits=commits, raises_epoch=raises_epoch)
        if refusal is not None:
            repeated = ProducerResult(refusal, found.producer_id, found.producer_epoch)
            self.state.reply(caller, ProducerResult(refusal) if refusal else repeated)
            return
        ending = found.ending(
            commits=commits,
            client_version=SERVER_VERSION if raises_epoch else 0,
            new_producer_id=self._new_producer_id()
            if raises_epoch and found.is_exhausted
            else NO_PRODUCER_ID,
            now=self.state.wall_clock,
        )
        reply = self.state.replier(caller)

        def stored(error: ErrorCode) -> None:
            if error:
                reply(ProducerResult(coordinator_error(error)))
                return
            if ending.next_producer_id >= 0:
                reply(ProducerResult(error, ending.next_producer_id, 0))
            else:
                reply(ProducerResult(error, ending.producer_id, ending.producer_epoch))

        self._change(transactional_id, transaction, ending, stored)

    def _find(self, transactional_id: str) -> tuple[ErrorCode, Transaction | None]:
        """A transactional id that is known and not pending, or the error why not."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST, None
        if error := self.state.unavailable(transactional_id):
            return error, None
        transaction = self.by_id.get(transactional_id)
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if transaction.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        return ErrorCode.NONE, transaction

    def _change(
        self,
        transactional_id: str,
        transaction: Transaction,
        changed: TransactionMetadata,
        then: Callable[[ErrorCode], None],
    ) -> None:
        """Write the change; ``then`` is called at the end, and before that if the write is late."""
        transaction.pending = changed.state

        def stored(error: ErrorCode) -> None:
            if self.by_id.get(transactional_id) is transaction:
                transaction.pending = None
                if not error:
                    transaction.metadata = changed
                elif transaction.metadata.producer_epoch < 0:  # it was never stored
                    self._forget(transactional_id)
            then(error)
            if not error and self.by_id.get(transactional_id) is transaction and changed.state.is_ending:
                self._send_markers(transactional_id, transaction)

        record = transaction_record(transactional_id, changed, self._server_version)
        is_end = changed.state.is_ending or changed.state.is_complete
        self.state.store(transactional_id, [record], stored, then, is_end=is_end)

    def _fence(
        self, transactional_id: str, transaction: Transaction, then: Callable[[ErrorCode], None]
    ) -> None:
        found = transaction.metadata
        fenced = found.fenced(
            server_version=self._server_version,
            new_producer_id=self._new_producer_id() if found.is_exhausted else NO_PRODUCER_ID,
            now=self.state.wall_clock,
        )
        self._change(transactional_id, transaction, fenced, then)

    # ---- markers

    def _send_markers(self, transactional_id: str, transaction: Transaction) -> None:
        ending = transaction.metadata
        transaction.unmarked = set(ending.partitions)
        if not transaction.unmarked:
            self._complete(transactional_id)
            return
        partition = self.state.partition_of(transactional_id)
        self._markers.send(
            Markers(
                transactional_id,
                partition,
                ending.producer_id,
                ending.producer_epoch,
                self._epochs.get(partition, 0),
                ending.commits,
                ending.client_version,
                ending.partitions,
            )
        )

    def markers_written(self, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        """These partitions have their markers, or need none."""
        transaction = self.by_id.get(markers.transactional_id)
        if transaction is None or self._epochs.get(markers.log_partition, 0) != markers.coordinator_epoch:
            return
        ending = transaction.metadata
        producer = markers.producer_id, markers.producer_epoch
        if ending.state.is_ending and (ending.producer_id, ending.producer_epoch) == producer:
            self._marked(markers.transactional_id, transaction, partitions)

    def _marked(
        self, transactional_id: str, transaction: Transaction, partitions: Iterable[TopicPartition]
    ) -> None:
        before = len(transaction.unmarked)
        transaction.unmarked.difference_update(partitions)
        if before and not transaction.unmarked:
            self._complete(transactional_id)

    def _complete(self, transactional_id: str) -> None:
        """Write that a transaction is complete; a failure is retried, because nobody else would."""
        transaction = self.by_id.get(transactional_id)
        if transaction is None or transaction.pending is not None or not transaction.metadata.state.is_ending:
            return

        def stored(error: ErrorCode) -> None:
            if error and transaction.pending is None and self.by_id.get(transactional_id) is transaction:
                self.state.timers.set((_COMPLETION, transactional_id), self.state.now + RETRY_MS)

        completed = transaction.metadata.completed(self.state.wall_clock)
        self._change(transactional_id, transaction, completed, stored)

    # ---- time-outs and expiry

    def _sweep(self, key: TimerKey) -> None:
        """Check some transactional ids; the next ones follow in another turn of the loop."""
        handle = self._abort_if_timed_out if key == _TIME_OUTS else self._remove_if_expired
        left = self._sweeps.get(key)
        if left is None:
            left = self._sweeps[key] = iter(list(self.by_id))
        some = list(islice(left, SWEPT))
        for transactional_id in some:
            transaction = self.by_id.get(transactional_id)
            if transaction is not None and transaction.pending is None:
                handle(transactional_id, transaction)
        if len(some) == SWEPT:
            self.state.timers.set(key, self.state.now + 1)
        else:
            del self._sweeps[key]
            self._set_timer(key)

    def _abort_if_timed_out(self, transactional_id: str, transaction: Transaction) -> None:
        if transaction.metadata.is_timed_out(self.state.wall_clock):
            self._fence(transactional_id, transaction, lambda error: None)

    def _remove_if_expired(self, transactional_id: str, transaction: Transaction) -> None:
        expiration_ms = self._config.transactional_id_expiration_ms
        if transaction.metadata.is_expired(self.state.wall_clock, expiration_ms):
            self._remove(transactional_id, transaction)

    def _remove(self, transactional_id: str, transaction: Transaction) -> None:
        transaction.pending = TransactionState.DEAD

        def stored(error: ErrorCode) -> None:
            if self.by_id.get(transactional_id) is transaction:
                transaction.pending = None
                if not error:
                    self._forget(transactional_id)

        self.state.store(transactional_id, [transaction_record(transactional_id, None)], stored)

    # ---- for administrators

    def describe(self, transactional_id: str) -> TransactionDescription:
        if not transactional_id:
            return TransactionDescription(ErrorCode.INVALID_REQUEST, transactional_id)
        if error := self.state.unavailable(transactional_id):
            return TransactionDescription(error, transactional_id)
        transaction = self.by_id.get(transactional_id)
        if transaction is None or transaction.pending is TransactionState.DEAD:
            return TransactionDescription(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
        metadata = transaction.metadata
        if metadata.state.is_ending:
            metadata = replace(metadata, partitions=frozenset(transaction.unmarked))
        return TransactionDescription(ErrorCode.NONE, transactional_id, metadata)


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """The error that clients get if a record could not be stored in __transaction_state."""
    match error:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return error
