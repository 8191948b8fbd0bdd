"""The transaction coordinator's state machine, with a clock, a store and markers that the test controls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millstream_broker.coordinator.effects import KeyValue, Reply, StoreRecords
from millstream_broker.transactions.messages import Markers, ProducerResult, TransactionConfig
from millstream_broker.transactions.records import read_transactions
from millstream_broker.transactions.shard import TransactionCoordinatorShard
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

START = 1_800_000_000_000
FIRST_PRODUCER_ID = 1000
TIMEOUT_MS = 60_000
Producer = tuple[int, int]
A, B = ("a", 0), ("b", 1)


@dataclass
class SentMarkers:
    """A `MarkerSender` that keeps what it gets."""

    waiting: list[Markers] = field(default_factory=list)

    def send(self, markers: Markers) -> None:
        self.waiting.append(markers)

    def forget(self, log_partition: int) -> None:
        self.waiting = [each for each in self.waiting if each.log_partition != log_partition]


class TransactionMachine:
    """One coordinator of one partition. Stores succeed at once, unless ``holds`` is set; then ``store`` completes the
    oldest. Markers wait for ``mark``, unless ``marks`` is set."""

    def __init__(self, config: TransactionConfig | None = None, *, server_version: int = 2) -> None:
        self.config = config or TransactionConfig(transaction_state_log_num_partitions=1)
        self.server_version = server_version
        self.log: list[KeyValue] = []
        """What is stored, in order."""
        self.now = 0
        self.epoch = 0
        self.holds = False
        self.marks = True
        self.held: list[StoreRecords] = []
        self._producer_ids = itertools.count(FIRST_PRODUCER_ID)
        self.start()

    def start(self) -> None:
        """A coordinator begins, and loads what is stored."""
        self.epoch += 1
        self.held = []
        self.markers = SentMarkers()
        self.shard = TransactionCoordinatorShard(
            self.config, lambda: next(self._producer_ids), self.markers, self.server_version
        )
        self.advance(0)
        self.shard.set_epoch(0, self.epoch)
        self.shard.state.begin_load(0)
        self.load()

    def load(self) -> None:
        batches = [build_batch([Record(key, value, 0)]) for key, value in self.log]
        loaded = read_transactions(batches, 0, 1)
        assert loaded.skipped.unreadable == 0, loaded.skipped.examples
        self.shard.loaded(0, loaded)
        self._settle()

    # ---- time, stores, markers

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.shard.advance(self.now, START + self.now)
        self._settle()

    def store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """End the oldest store that is held."""
        self._store(error)
        self._settle()

    def _store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        store = self.held.pop(0)
        if not error:
            self.log.extend(store.records)
        self.shard.state.stored([store.write], error)

    def late(self) -> None:
        """The oldest store that is held is in the log, but not committed in time."""
        self.shard.state.late([self.held[0].write], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self._settle()

    def mark(self, partitions: Collection[TopicPartition] | None = None) -> Markers:
        """Write the oldest markers, in all partitions or in some."""
        markers = self._mark(partitions)
        self._settle()
        return markers

    def _mark(self, partitions: Collection[TopicPartition] | None = None) -> Markers:
        markers = self.markers.waiting.pop(0)
        written = markers.partitions if partitions is None else markers.partitions & set(partitions)
        if left := markers.partitions - written:
            self.markers.waiting.insert(0, replace(markers, partitions=left))
        self.shard.markers_written(markers, written)
        return markers

    def _settle(self) -> None:
        while True:
            effects = self.shard.state.take_effects()
            for effect in effects:
                if isinstance(effect, Reply):
                    assert isinstance(effect.caller, list)
                    effect.caller.append(effect.result)
                else:
                    assert isinstance(effect, StoreRecords)
                    self.held.append(effect)
            if self.held and not self.holds:
                self._store()
            elif self.markers.waiting and self.marks:
                self._mark()
            elif not effects:
                return

    # ---- requests

    def call(self, request: Callable[[list[Any]], None]) -> list[Any]:
        """The replies so far: none while the caller waits."""
        replies: list[Any] = []
        request(replies)
        self._settle()
        return replies

    def _result(self, request: Callable[[list[Any]], None]) -> Any:
        (result,) = self.call(request)
        return result

    def init(
        self, transactional_id: str = "t", timeout_ms: int = TIMEOUT_MS, *, expected: Producer | None = None
    ) -> ProducerResult:
        found: ProducerResult = self._result(
            lambda caller: self.shard.init_producer_id(caller, transactional_id, timeout_ms, expected)
        )
        return found

    def started(self, transactional_id: str = "t", *, expected: Producer | None = None) -> Producer:
        result = self.init(transactional_id, expected=expected)
        assert not result.error, result
        return result.producer_id, result.producer_epoch

    def add(
        self, producer: Producer, *partitions: TopicPartition, transactional_id: str = "t", version: int = 2
    ) -> ErrorCode:
        error: ErrorCode = self._result(
            lambda caller: self.shard.add_partitions(caller, transactional_id, producer, partitions, version)
        )
        return error

    def verify(
        self, producer: Producer, *partitions: TopicPartition, transactional_id: str = "t"
    ) -> Mapping[TopicPartition, ErrorCode]:
        return self.shard.verify_partitions(transactional_id, producer, partitions)

    def end(
        self, producer: Producer, *, commits: bool, raises_epoch: bool = True, transactional_id: str = "t"
    ) -> ProducerResult:
        found: ProducerResult = self._result(
            lambda caller: self.shard.end(
                caller, transactional_id, producer, commits=commits, raises_epoch=raises_epoch
            )
        )
        return found

    def state(self, transactional_id: str = "t") -> str:
        """The name of the state, empty for an id that is not known."""
        metadata = self.shard.describe(transactional_id).metadata
        return "" if metadata is None else metadata.state.label


def ongoing(machine: TransactionMachine, version: int = 2) -> Producer:
    """A producer with an open transaction, to which it has added A."""
    producer = machine.started()
    assert machine.add(producer, A, version=version) is ErrorCode.NONE
    return producer
