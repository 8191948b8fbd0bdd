"""The transaction coordinator on the event loop, for the handlers of APIs: its state machine on the runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from ..administration.producer_ids import ProducerIds
from ..coordinator.runtime import CoordinatorRuntime
from ..coordinator.writer import InternalTopic
from .checks import Producer
from .markers import TransactionMarkerSender
from .messages import Markers, ProducerResult, TransactionConfig, TransactionDescription
from .shard import TransactionCoordinatorShard
from .transaction import TransactionMetadata, TransactionState


class TransactionDriver:
    """The APIs of transactions as coroutines."""

    def __init__(
        self,
        config: TransactionConfig,
        topic: InternalTopic,
        producer_ids: ProducerIds,
        sender: TransactionMarkerSender,
    ) -> None:
        self._coordinator = TransactionCoordinatorShard(config, producer_ids.next, sender)
        self._runtime = CoordinatorRuntime(self._coordinator, topic, "transactional ids")
        self._sender = sender
        self.max_timeout_ms = config.transaction_max_timeout_ms
        sender.report_to(self._markers_written)

    # ---- life

    async def ensure_topic(self) -> None:
        """Create __transaction_state at the first use of transactions. Raises ApiError."""
        await self._runtime.ensure_topic()

    def set_partition_count(self, count: int) -> None:
        """Set the number of partitions of __transaction_state."""
        self._runtime.set_partition_count(count)

    def on_election(self, partition: int, leader_epoch: int) -> None:
        """Load this partition of __transaction_state, because this broker leads it from now on."""
        self._runtime.run(lambda: self._coordinator.set_epoch(partition, leader_epoch))
        self._runtime.on_election(partition)

    def on_resignation(self, partition: int) -> None:
        """Another broker leads it: waiting callers get NOT_COORDINATOR; loads, writes and markers are abandoned."""
        self._runtime.on_resignation(partition)

    def on_topics_deleted(self, deleted: Mapping[str, UUID]) -> None:
        """Call this after the deletion of topics, with their ids by name."""
        self._sender.topics_deleted(deleted)

    async def close(self) -> None:
        """Reply to all waiting callers, and let running appends finish, for a limited time."""
        await self._sender.close()
        await self._runtime.close()

    def _markers_written(self, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        self._runtime.run(lambda: self._coordinator.markers_written(markers, partitions))

    # ---- the APIs

    @property
    def loading(self) -> int:
        """Partitions whose transactional ids are being loaded."""
        return self._runtime.loading

    @property
    def unreadable(self) -> int:
        """Records that were skipped when transactional ids were loaded, since the start."""
        return self._runtime.unreadable

    def partition_of(self, transactional_id: str) -> int:
        return self._coordinator.state.partition_of(transactional_id)

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> ProducerResult:
        result: ProducerResult = await self._runtime.call(
            lambda caller: self._coordinator.init_producer_id(caller, transactional_id, timeout_ms, expected)
        )
        return result

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        client_version: int,
    ) -> ErrorCode:
        result: ErrorCode = await self._runtime.call(
            lambda caller: self._coordinator.add_partitions(
                caller, transactional_id, producer, partitions, client_version
            )
        )
        return result

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        return self._coordinator.verify_partitions(transactional_id, producer, partitions)

    async def end(
        self, transactional_id: str, producer: Producer, *, commits: bool, raises_epoch: bool
    ) -> ProducerResult:
        result: ProducerResult = await self._runtime.call(
            lambda caller: self._coordinator.end(
                caller, transactional_id, producer, commits=commits, raises_epoch=raises_epoch
            )
        )
        return result

    @property
    def wall_clock(self) -> int:
        """Milliseconds since the epoch."""
        return self._coordinator.state.wall_clock

    def all(self) -> list[tuple[str, TransactionMetadata]]:
        """The transactional ids that this broker coordinates, except those that expire right now."""
        self._runtime.run(lambda: None)  # sets the clock
        return [
            (transactional_id, transaction.metadata)
            for transactional_id, transaction in self._coordinator.by_id.items()
            if transaction.pending is not TransactionState.DEAD
        ]

    def describe(self, transactional_id: str) -> TransactionDescription:
        return self._coordinator.describe(transactional_id)
