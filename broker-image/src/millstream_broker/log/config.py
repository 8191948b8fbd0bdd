"""The configuration of a topic's logs. Names and defaults are Kafka's (topic configuration keys)."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream_kafka.batch import LARGEST_RECORD
from millstream_kafka.compression import Compression

from .index import entries_before_full

FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    index_interval_bytes: int = 4096
    index_size_max_bytes: int = 10 * 1024 * 1024  # segment.index.bytes
    retention_ms: int = 7 * 24 * 3_600_000  # -1: forever
    retention_bytes: int = -1  # -1: any size
    max_message_bytes: int = 1_048_588
    max_decompressed_message_bytes: int = LARGEST_RECORD  # of a record
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    cleanup_policy: str = "delete"  # delete, compact, both with a comma, or empty
    compression_type: str = "producer"
    compression_level: int | None = None  # level of that codec; None: its default
    message_timestamp_type: str = "CreateTime"  # or LogAppendTime
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_after_max_ms: int = 3_600_000
    delete_retention_ms: int = 24 * 3_600_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    min_cleanable_dirty_ratio: float = 0.5
    producer_id_expiration_ms: int = 24 * 3_600_000  # producer.id.expiration.ms of the broker
    mirror_source: str = ""
    """millstream.mirror.source: the log is a replica of another cluster's, and follows its log start."""

    reads_records: bool = field(init=False)
    """Whether a batch's records must be read before it is appended; otherwise its header suffices."""
    reads_compressed: bool = field(init=False)
    """Whether those of a compressed batch must be."""
    ordinary_attributes: frozenset[int] = field(init=False)
    """Attributes of the batches that may be stored as they are, by their headers (see `ordinary_append`)."""
    least_full_index: int = field(init=False)
    """Entries with which an index may be full."""

    def __post_init__(self) -> None:
        reads = (
            self.compacts
            or self.compression_type != "producer"
            or (
                self.message_timestamp_before_max_ms < FOREVER and self.message_timestamp_type == "CreateTime"
            )
        )
        object.__setattr__(self, "reads_records", reads)
        object.__setattr__(self, "reads_compressed", self.max_decompressed_message_bytes < LARGEST_RECORD)
        stored: frozenset[int] = frozenset()
        if not reads and self.message_timestamp_type == "CreateTime":
            stored = frozenset([Compression.NONE] if self.reads_compressed else Compression)
        object.__setattr__(self, "ordinary_attributes", stored)
        object.__setattr__(self, "least_full_index", entries_before_full(self.index_size_max_bytes))

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def keeps_all(self) -> bool:
        """An empty cleanup.policy: nothing is removed, unless DeleteRecords asks for it."""
        return not self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy
