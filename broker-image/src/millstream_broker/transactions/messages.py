"""Settings, and results of the transaction coordinator, as plain records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from .transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionMetadata

SERVER_VERSION = 2
"""The version of transactions of this cluster, `transaction.version` of Kafka's features."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Settings, by Kafka's names and defaults."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_num_partitions: int = 50


class ProducerResult(NamedTuple):
    """The reply to InitProducerId and EndTxn."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class Markers:
    """The end of a transaction, to be written to its partitions."""

    transactional_id: str
    log_partition: int
    """The partition of __transaction_state that holds the transactional id."""
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


class MarkerSender(Protocol):
    """Writes markers, and calls `TransactionCoordinatorShard.markers_written` as it succeeds."""

    def send(self, markers: Markers) -> None:
        """Write these, and retry until it succeeds, or `forget` is called."""

    def forget(self, log_partition: int) -> None:
        """Another coordinator has this partition of __transaction_state now."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    error: ErrorCode
    transactional_id: str
    metadata: TransactionMetadata | None = None
