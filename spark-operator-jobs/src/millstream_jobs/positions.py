"""The offsets of topics for a time, from their cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream_jobs.failures import JobError
from millstream_jobs.run import BadRun, OffsetRange

TIMEOUT_S = 20.0


class ClusterError(JobError):
    """The cluster does not answer; the message is one line for the user."""


def between(
    bootstrap: str, topics: Sequence[str], since: datetime, until: datetime | None
) -> tuple[OffsetRange, ...]:
    """For each partition, from the first record at or after ``since`` up to the first one at or after ``until``."""
    with consumer(bootstrap) as cluster:
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
def consumer(bootstrap: str) -> Iterator[Consumer]:
    """A consumer that belongs to no group."""
    cluster = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "millstream-jobs",  # librdkafka requires one; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        yield cluster
    except KafkaException as error:
        raise ClusterError(f"bootstrap: {bootstrap}: {error.args[0].str()}") from None
    finally:
        cluster.close()


def partitions(cluster: Consumer, topic: str, field: str = "topics") -> list[int]:
    """The numbers of a topic's partitions; BadRun, which names the file's field, if the topic does not exist."""
    told = cluster.list_topics(topic, TIMEOUT_S).topics[topic]
    if told.error is not None:
        raise BadRun(f"{field}: {topic} is not there: {told.error.str()}")
    return sorted(told.partitions)


def at(cluster: Consumer, parts: Sequence[tuple[str, int]], time: datetime) -> list[int | None]:
    """The offset of the first record of each partition at or after a time; None if there is none."""
    wanted = [TopicPartition(topic, number, round(time.timestamp() * 1000)) for topic, number in parts]
    found = {(part.topic, part.partition): part for part in cluster.offsets_for_times(wanted, TIMEOUT_S)}
    answers = [found[part] for part in parts]
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return [answer.offset if answer.offset >= 0 else None for answer in answers]
