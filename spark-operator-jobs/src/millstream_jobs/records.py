"""Which records a range holds: the last record of each partition, by offset, leader epoch and timestamp.

A topic's id stays when its log is restored from an older copy, and the same offsets then hold other records. Two logs
that agree on one record agree on all before it, so the last record of a range stands for the whole range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from millstream_jobs import positions
from millstream_jobs.brokers import Brokers
from millstream_jobs.identity import TopicReplaced
from millstream_jobs.run import OffsetRange

LOOK_BACK = 16
"""How far before the end of a range its last record is searched: a transaction's marker is no record."""
AT_ONCE = 200
"""Partitions that one consumer reads."""
SMALL_FETCHES = {
    **positions.READ_UNCOMMITTED,
    "max.partition.fetch.bytes": 65536,
    "queued.max.messages.kbytes": 16384,
}
ABSENT = (
    KafkaError._PARTITION_EOF,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
)
Key = tuple[str, int]


class LastRecord(Struct, frozen=True, array_like=True):
    """A record of a partition; ``epoch`` is that of the leader that appended it, -1 if unknown."""

    topic: str
    partition: int
    offset: int
    epoch: int
    timestamp: int

    @property
    def key(self) -> Key:
        return self.topic, self.partition


def last_of(brokers: Brokers, ranges: Sequence[OffsetRange]) -> tuple[LastRecord, ...]:
    """The last record of each range; ranges without one at their end are left out. Raises ClusterError."""
    wanted = {
        (part.topic, part.partition): range(max(part.first, part.until - LOOK_BACK), part.until)
        for part in ranges
        if part.records
    }
    return tuple(found for _, found in sorted(_read(brokers, wanted).items()))


def merged(earlier: Sequence[LastRecord], later: Sequence[LastRecord]) -> tuple[LastRecord, ...]:
    """The record with the highest offset of each partition."""
    found: dict[Key, LastRecord] = {}
    for record in chain(earlier, later):
        if record.key not in found or found[record.key].offset <= record.offset:
            found[record.key] = record
    return tuple(record for _, record in sorted(found.items()))


def check(brokers: Brokers, known: Sequence[LastRecord], run: str) -> None:
    """TopicReplaced if the log has another record in the place of one that ``run`` has loaded. Raises ClusterError.

    A record that is absent, because retention or compaction removed it, proves nothing.
    """
    wanted = {record.key: range(record.offset, record.offset + 1) for record in known}
    there = _read(brokers, wanted)
    for record in known:
        now = there.get(record.key)
        if now is not None and now != record:
            raise TopicReplaced(
                f"topics: the records of {record.topic}-{record.partition} were replaced: run {run} read offset"
                f" {record.offset} with timestamp {record.timestamp} and leader epoch {record.epoch}, and it now has"
                f" timestamp {now.timestamp} and leader epoch {now.epoch}: the log was restored from an older copy, or"
                " lost records; nothing was published; to load the present records, give from a new requestId"
            )


def _read(brokers: Brokers, wanted: Mapping[Key, range]) -> dict[Key, LastRecord]:
    """The last record of each partition among these offsets."""
    found: dict[Key, LastRecord] = {}
    ordered = sorted(wanted)
    for begin in range(0, len(ordered), AT_ONCE):
        keys = ordered[begin : begin + AT_ONCE]
        with positions.consumer(brokers, SMALL_FETCHES) as consumer:
            consumer.assign([TopicPartition(*key, wanted[key].start) for key in keys])
            for record in _records(consumer, {key: wanted[key].stop for key in keys}):
                found[record.key] = record
    return found


def _records(consumer: Consumer, ends: dict[Key, int]) -> Iterator[LastRecord]:
    """The records before the ends, in the order of their offsets."""
    deadline = time.monotonic() + positions.TIMEOUT_S
    while ends:
        for message in consumer.consume(AT_ONCE, 0.1):
            key, error = (message.topic() or "", message.partition() or 0), message.error()
            if key not in ends:
                continue
            offset, epoch = message.offset(), message.leader_epoch()
            if error is None and offset is not None and offset < ends[key]:
                yield LastRecord(*key, offset, -1 if epoch is None else epoch, message.timestamp()[1])
                if offset < ends[key] - 1:
                    continue
            elif error is not None and error.code() not in ABSENT:
                continue  # the client tries again
            del ends[key]
        if ends and time.monotonic() > deadline:
            topic, partition = min(ends)
            raise KafkaException(
                KafkaError(
                    KafkaError._TIMED_OUT,
                    f"{topic}-{partition}: no record within {positions.TIMEOUT_S:.0f} s",
                )
            )
