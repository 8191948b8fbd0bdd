"""This broker's view of the cluster: brokers, topics, partitions, and the rules for topic names.

`Metadata` is replaced as a whole by each change that coordination reports, so readers never see half of one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from time import monotonic

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination import BrokerRecord, ClusterState, TopicRecord

MAX_NAME_LENGTH = 249
LISTED_S = 3.0
"""How long clients still see the address of a lost leader. If the response that names a partition's new leader does not
list the old one, librdkafka 2.16 loses the partition on the way, and looks for its leader again a second later."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class Metadata:
    """One state of the cluster, indexed for lookups."""

    __slots__ = (
        "_collisions",
        "_lost",
        "brokers",
        "cluster_id",
        "controller_id",
        "state",
        "topics",
        "topics_by_id",
    )

    def __init__(self, state: ClusterState, before: Metadata | None = None) -> None:
        """`before`: an earlier state, most of whose topics are the same."""
        self.state = state
        self._collisions: dict[str, str] | None = None
        self.cluster_id = state.cluster_id
        self.controller_id = state.controller_id
        self.brokers: dict[int, BrokerRecord] = dict(state.brokers)
        self.topics: dict[str, TopicRecord] = dict(state.topics)
        self._lost: dict[int, tuple[BrokerRecord, float]] = (
            {} if before is None else before._without(self.brokers)
        )
        """Brokers that led partitions when they were lost, and until when they are listed."""
        self.topics_by_id: dict[uuid.UUID, TopicRecord] = {} if before is None else before.topics_by_id.copy()
        known: Mapping[str, TopicRecord] = {} if before is None else before.topics
        for name, topic in known.items():
            if self.topics.get(name) is not topic:
                self.topics_by_id.pop(topic.topic_id, None)
        for name, topic in self.topics.items():
            if known.get(name) is not topic:
                self.topics_by_id[topic.topic_id] = topic

    def _without(self, brokers: Collection[int]) -> dict[int, tuple[BrokerRecord, float]]:
        """The lost brokers of the next state, which has these."""
        now = monotonic()
        lost = {
            number: broker
            for number, broker in self._lost.items()
            if number not in brokers and now < broker[1]
        }
        for number, record in self.brokers.items():
            if number not in brokers and self._leads(number):
                lost[number] = record, now + LISTED_S
        return lost

    def _leads(self, broker_id: int) -> bool:
        return any(
            partition.leader == broker_id for topic in self.topics.values() for partition in topic.partitions
        )

    def listed_brokers(self) -> list[BrokerRecord]:
        """Those that run, and leaders that were lost a moment ago. A broker that hands over first is not among them."""
        now = monotonic()
        return [*self.brokers.values(), *(record for record, until in self._lost.values() if now < until)]

    def topic(self, name: str) -> TopicRecord:
        """Raises ApiError UNKNOWN_TOPIC_OR_PARTITION."""
        if (topic := self.topics.get(name)) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def known_brokers(self) -> set[int]:
        """All that run, and all that hold a replica: those are registered in Kafka, too, even if they are down."""
        holders = {
            broker
            for topic in self.topics.values()
            for partition in topic.partitions
            for broker in partition.replicas
        }
        return holders.union(self.brokers)

    def collision(self, name: str) -> str | None:
        """Another topic whose name collides in metrics, where `.` and `_` both become `_`."""
        if "." not in name and "_" not in name:
            return None
        if self._collisions is None:
            self._collisions = {plain_name(name): name for name in self.topics}
        other = self._collisions.get(plain_name(name))
        return None if other == name else other


def plain_name(name: str) -> str:
    return name.replace(".", "_")


def check_topic_name(name: str) -> None:
    """Kafka's rules; raises ApiError INVALID_TOPIC_EXCEPTION."""
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
