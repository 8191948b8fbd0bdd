"""Converts between topics and the logs on this broker: configuration of logs from topics, topics from logs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import cast

from millstream_kafka.mirror_source import KEY as MIRROR_SOURCE

from ..config.config import BrokerConfig, TopicConfig
from ..config.topic_keys import TOPIC_KEYS
from ..coordination import PartitionRecord, TopicRecord
from ..log.config import LogConfig
from ..log.manager import Found, LogManager
from ..topic_rules.internal_topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    offsets_topic_config,
    transactions_topic_config,
)

KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""The configuration of a topic whose own one is lost."""
_INTERNAL = {
    OFFSETS_TOPIC: offsets_topic_config(),
    TRANSACTIONS_TOPIC: transactions_topic_config(min_isr=1),
}


def adopted(found: Iterable[Found], logs: LogManager, broker_id: int) -> list[TopicRecord]:
    """The topics that these logs belong to, each partition led by this broker in an epoch above those of its log.

    Their configuration is lost: until they are configured again, nothing is deleted from them.
    """
    topics: dict[str, tuple[uuid.UUID, dict[int, int]]] = {}
    for entry in found:
        _, epochs = topics.setdefault(entry.topic, (entry.topic_id or uuid.uuid4(), {}))
        log = logs.get(entry.topic, entry.partition)
        epochs[entry.partition] = 0 if log is None else log.epochs.latest + 1
    return [
        TopicRecord(
            name,
            topic_id,
            tuple(
                PartitionRecord((broker_id,), broker_id, epochs.get(index, 0), (broker_id,))
                for index in range(max(epochs) + 1)
            ),
            _INTERNAL.get(name, KEEPS_ALL),
        )
        for name, (topic_id, epochs) in topics.items()
    ]


def log_config(topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """The configuration of a topic's logs."""
    cleanup_policy = ",".join(topic.strings("cleanup.policy"))
    compression_type = topic.text("compression.type")
    level = f"compression.{compression_type}.level"
    segment_ms = topic.integer("segment.ms")
    if "compact" in cleanup_policy:  # an active segment is not compacted
        segment_ms = min(segment_ms, topic.integer("max.compaction.lag.ms"))
    return LogConfig(
        segment_bytes=topic.integer("segment.bytes"),
        segment_ms=segment_ms,
        index_interval_bytes=topic.integer("index.interval.bytes"),
        index_size_max_bytes=topic.integer("segment.index.bytes"),
        retention_ms=topic.integer("retention.ms"),
        retention_bytes=topic.integer("retention.bytes"),
        max_message_bytes=topic.integer("max.message.bytes"),
        max_decompressed_message_bytes=topic.integer("max.decompressed.message.bytes"),
        flush_messages=topic.integer("flush.messages"),
        flush_ms=topic.integer("flush.ms"),
        cleanup_policy=cleanup_policy,
        compression_type=compression_type,
        compression_level=topic.integer(level) if level in TOPIC_KEYS else None,
        message_timestamp_type=topic.text("message.timestamp.type"),
        message_timestamp_before_max_ms=topic.integer("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=topic.integer("message.timestamp.after.max.ms"),
        delete_retention_ms=topic.integer("delete.retention.ms"),
        min_compaction_lag_ms=topic.integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=topic.integer("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=cast(float, topic["min.cleanable.dirty.ratio"]),
        producer_id_expiration_ms=broker.integer("producer.id.expiration.ms"),
        mirror_source=topic.text(MIRROR_SOURCE),
    )
