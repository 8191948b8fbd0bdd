"""The cluster as this broker sees it: brokers, topics, partitions, and the rules of topic names.

`Metadata` is replaced as a whole by each change that coordination reports, so readers never see half of one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from .coordination import BrokerRecord, ClusterState, TopicRecord
from .protocol.errors import ApiError, ErrorCode

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
MAX_NAME_LENGTH = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class Metadata:
    """One state of the cluster, indexed for lookups."""

    __slots__ = ("brokers", "cluster_id", "controller_id", "state", "topics", "topics_by_id")

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.cluster_id = state.cluster_id
        self.controller_id = state.controller_id
        self.brokers: dict[int, BrokerRecord] = dict(state.brokers)
        self.topics: dict[str, TopicRecord] = dict(state.topics)
        self.topics_by_id: dict[uuid.UUID, TopicRecord] = {
            topic.topic_id: topic for topic in self.topics.values()
        }

    def topic(self, name: str) -> TopicRecord:
        """Raises ApiError UNKNOWN_TOPIC_OR_PARTITION."""
        if (topic := self.topics.get(name)) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def check_topic_name(name: str, existing: Iterable[str] = ()) -> None:
    """Kafka's rules; raises ApiError INVALID_TOPIC_EXCEPTION.

    `.` and `_` must not tell two names apart: both become `_` in the names of metrics.
    """
    problem = None
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
    if "." in name or "_" in name:
        plain = name.replace(".", "_")
        for other in existing:
            if other != name and other.replace(".", "_") == plain:
                message = f"Topic '{name}' collides with existing topic: {other}"
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
