"""Internal topics, and the operations on them that clients may not perform.

Coordinators write them, and commits last only as long as these topics do. So a client's Produce, DeleteRecords,
DeleteTopics and CreatePartitions are refused, and their cleanup.policy is compact. Kafka refuses Produce and
DeleteRecords only; Millstream has no authorisation that could keep the rest for administrators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from millstream_kafka.protocol.errors import ApiError, ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
INTERNAL_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact", "compression.type": "producer"}
"""Only the newest record of a key counts, and batches stay as the coordinator writes them."""


class InternalFactors(NamedTuple):
    """Replicas of the internal topics, as soon as there are as many brokers."""

    offsets: int = 1
    transactions: int = 1


ONE_REPLICA = InternalFactors()


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def check_not_internal(name: str) -> None:
    """Raises ApiError INVALID_TOPIC_EXCEPTION."""
    if name in INTERNAL_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic: only brokers change what it has"
        )


def offsets_topic_config(segment_bytes: int = 104_857_600) -> dict[str, str]:
    return {**INTERNAL_CONFIG, "segment.bytes": str(segment_bytes)}


def transactions_topic_config(segment_bytes: int = 104_857_600, *, min_isr: int) -> dict[str, str]:
    """As Kafka: nothing is compressed, and no replica outside the ISR becomes leader."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min_isr),
        "segment.bytes": str(segment_bytes),
        "unclean.leader.election.enable": "false",
    }
