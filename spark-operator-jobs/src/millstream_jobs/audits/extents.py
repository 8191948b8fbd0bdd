"""The offsets of each partition that an audit reads, and the records that retention has deleted before them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from millstream_jobs import positions
from millstream_jobs.brokers import Brokers
from millstream_jobs.positions import TIMEOUT_S
from millstream_jobs.run import OffsetRange

ALL_TIME = datetime(9999, 1, 1, tzinfo=timezone.utc)


class Extent(Struct, frozen=True):
    """One partition: records from ``start`` up to, not including, ``end`` are read; the log begins at ``begin``."""

    topic: str
    partition: int
    begin: int
    start: int
    end: int
    gone_until: datetime | None
    """Deleted records may have times up to this one; None if no record of the audit's time was deleted."""

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.start, self.end)


def find(
    brokers: Brokers, topics: Sequence[str], since: datetime | None, field: str = "topics"
) -> tuple[Extent, ...]:
    """All partitions of the topics, from the first record at or after a time up to the end of the log.

    No earlier record is that recent, in any order of times. BadRun for a topic that does not exist, which names
    ``field``; ClusterError.
    """
    with positions.consumer(brokers) as cluster:
        parts = [
            (topic, number) for topic in topics for number in positions.partitions(cluster, topic, field)
        ]
        first = positions.at(cluster, parts, since) if since else [0] * len(parts)
        found = []
        for (topic, number), start in zip(parts, first, strict=True):
            begin, end = cluster.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)
            start = min(max(end if start is None else start, begin), end)
            # If older records still exist, so do those of the audit's time.
            gone = _time_at(cluster, topic, number, begin) if 0 < begin == start else None
            found.append(Extent(topic, number, begin, start, end, gone))
    return tuple(found)


def _time_at(cluster: Consumer, topic: str, number: int, offset: int) -> datetime:
    """The time of the first record at or after an offset; ALL_TIME if there is none."""
    cluster.assign([TopicPartition(topic, number, offset)])
    message = cluster.poll(TIMEOUT_S)
    cluster.unassign()
    if message is None:
        raise positions.ClusterError(f"{topic}-{number}: no record was read within {TIMEOUT_S:.0f} s")
    if (error := message.error()) is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            return ALL_TIME
        raise KafkaException(error)
    return datetime.fromtimestamp(message.timestamp()[1] / 1000, timezone.utc)
