"""Topics in their cluster: partitions, offsets for a time, ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream_jobs.brokers import Brokers
from millstream_jobs.failures import JobError
from millstream_jobs.run import BadRun, OffsetRange

TIMEOUT_S = 20.0
LOG_LEVEL = 5
"""Omits librdkafka's message at every end of a client."""
NO_ID = "A" * 22
READ_UNCOMMITTED = {"isolation.level": "read_uncommitted"}
"""Settings of a consumer that an open transaction, which may be somebody else's, must not delay."""
CREATE = "create it, or correct the name"


class ClusterError(JobError):
    """The cluster does not respond; the message is one line for the user."""


class NoTopic(BadRun):
    """There is no such topic."""

    reason = "TopicNotFound"


class NoPartition(ClusterError):
    """A topic or partition of a run does not exist; a retry may find it."""

    reason = "TopicNotFound"


def between(
    brokers: Brokers, topics: Sequence[str], since: datetime, until: datetime | None
) -> tuple[OffsetRange, ...]:
    """For each partition, from the first record at or after ``since`` up to the first one at or after ``until``."""
    with consumer(brokers) as cluster:
        parts = [(topic, number) for topic in topics for number in partitions(cluster, topic)]
        first = at(cluster, parts, since)
        last = at(cluster, parts, until) if until else [None] * len(parts)
        ranges = []
        for (topic, number), begin, stop in zip(parts, first, last, strict=True):
            low, high = cluster.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)
            end = high if stop is None else stop
            ranges.append(
                OffsetRange(topic, number, max(min(end if begin is None else begin, end), low), max(end, low))
            )
    return tuple(ranges)


@contextmanager
def consumer(brokers: Brokers, more: Mapping[str, Any] | None = None) -> Iterator[Consumer]:
    """A consumer that belongs to no group."""
    refused: list[KafkaError] = []
    cluster = Consumer(
        {
            **brokers.client(),
            "group.id": "millstream-jobs",  # librdkafka requires one; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": refused.append,
            **(more or {}),
        }
    )
    try:
        yield cluster
    except KafkaException as error:
        cluster.poll(0)  # calls error_cb
        raise ClusterError(f"bootstrap: {brokers.bootstrap}: {_cause(error.args[0], refused)}") from None
    finally:
        cluster.close()


def _cause(error: KafkaError, refused: Sequence[KafkaError]) -> str:
    """Why a request failed. ``refused``: what the client reported of its connections meanwhile."""
    causes = (error for error in refused if error.code() in (KafkaError._SSL, KafkaError._AUTHENTICATION))
    return next(causes, error).str()


def partitions(cluster: Consumer, topic: str, field: str = "topics") -> list[int]:
    """The numbers of a topic's partitions; NoTopic, which names the file's field, if the topic does not exist."""
    metadata = cluster.list_topics(topic, TIMEOUT_S).topics[topic]
    if metadata.error is not None:
        raise NoTopic(f"{field}: {topic} is not there: {metadata.error.str()}: {CREATE}")
    return sorted(metadata.partitions)


def check_partitions(brokers: Brokers, ranges: Sequence[OffsetRange]) -> None:
    """NoPartition if the cluster does not have a range's topic or partition."""
    with consumer(brokers) as cluster:
        for topic in dict.fromkeys(part.topic for part in ranges):
            try:
                there = partitions(cluster, topic)
            except NoTopic as error:
                raise NoPartition(str(error)) from None
            for number in sorted(part.partition for part in ranges if part.topic == topic):
                if number not in there:
                    raise NoPartition(
                        f"offsets: {topic}-{number} is not there: the topic has partitions 0 to {there[-1]}:"
                        " add partitions, or take offsets of these"
                    )


def topic_ids(brokers: Brokers, topics: Sequence[str]) -> dict[str, str | None]:
    """The id of each existing topic, which differs for a recreated topic; None from brokers without ids.

    ClusterError if the cluster does not respond.
    """
    refused: list[KafkaError] = []
    config: dict[str, Any] = {**brokers.client(), "log_level": LOG_LEVEL, "error_cb": refused.append}
    admin = AdminClient(config)
    ids: dict[str, str | None] = {}
    for topic, described in admin.describe_topics(
        TopicCollection([*topics]), request_timeout=TIMEOUT_S
    ).items():
        try:
            number = as_kafka_writes(str(described.result().topic_id))
        except KafkaException as error:
            kafka_error = error.args[0]
            if kafka_error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                admin.poll(0)  # calls error_cb
                why = _cause(kafka_error, refused)
                raise ClusterError(f"bootstrap: {brokers.bootstrap}: {why}") from None
            continue
        ids[topic] = None if number == NO_ID else number
    return ids


def as_kafka_writes(number: str) -> str:
    """Convert an id from librdkafka, whose base64 uses + and / where Kafka's uses - and _."""
    return number.replace("+", "-").replace("/", "_")


def at(cluster: Consumer, parts: Sequence[tuple[str, int]], time: datetime) -> list[int | None]:
    """The offset of the first record of each partition at or after a time; None if there is none."""
    wanted = [TopicPartition(topic, number, round(time.timestamp() * 1000)) for topic, number in parts]
    found = {(part.topic, part.partition): part for part in cluster.offsets_for_times(wanted, TIMEOUT_S)}
    answers = [found[part] for part in parts]
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return [answer.offset if answer.offset >= 0 else None for answer in answers]
