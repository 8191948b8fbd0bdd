"""Whether a stream's topic still exists: the stream asks the brokers itself while no message comes.

librdkafka reports a missing topic late or never: a member without partitions learns of it with the next refresh of its
metadata, after minutes, and with `group.protocol=consumer` nobody does.

A broker that has not yet heard of a new topic denies it, so the topic is missing once two answers, a while apart, say
so.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from millstream.connection import REQUEST_TIMEOUT_S, Cluster
from millstream.consuming.clock import now
from millstream.errors import UnknownTopic

CHECK_S: Final = 5.0
"""Time without a message before each request."""
DENIALS: Final = 2


class Presence:
    """The checks of one stream. Requests are answered in the background: no call waits."""

    def __init__(self, topic: str, cluster: Cluster) -> None:
        self._topic, self._cluster = topic, cluster
        self._due = now() + CHECK_S
        self._asked: Future[Any] | None = None
        self._denials = 0

    def heard(self) -> None:
        """Messages have arrived, so the topic exists."""
        self._due, self._asked, self._denials = now() + CHECK_S, None, 0

    def check(self) -> None:
        """No message has arrived: raise UnknownTopic if the topic is missing. Other errors say nothing about it."""
        if self._asked is not None:
            if not self._asked.done():
                return
            answer, self._asked = self._asked, None
            if _denies(answer):
                self._denials += 1
            else:
                self._denials = 0
        if self._denials >= DENIALS:
            self._denials = 0
            raise UnknownTopic(f'there is no topic "{self._topic}" any more', "create it, then iterate again")
        if now() >= self._due:
            self._due = now() + CHECK_S
            asked = self._cluster.admin.describe_topics(
                TopicCollection([self._topic]), request_timeout=REQUEST_TIMEOUT_S
            )
            self._asked = asked[self._topic]


def _denies(answer: Future[Any]) -> bool:
    error = answer.exception()
    if not isinstance(error, KafkaException):
        return False
    return error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
