"""Copies records that only the target has to the topic ``TOPIC.set-aside``, before ``TOPIC`` is truncated.

Partition, order, keys, values, headers and timestamps stay. Each record gets these headers (text), which identify it:

    set-aside.topic-id        id of its topic
    set-aside.partition       its partition there
    set-aside.offset          its offset there
    set-aside.leader-epoch    the leader epoch under which it was written
    set-aside.common-offset   the offset at which its partition diverged from the source's
    set-aside.number          its number among those set aside there, from 1
    set-aside.request-id      the request to rejoin under which it was set aside

The topic keeps records for ever unless somebody configures it otherwise. All in-sync replicas acknowledge the records.
The last record shows how far a worker has come, and its batch has the producer id and sequence number. Another worker
of the same request continues after it, with the same numbers, if the topic still has that record at its offset; the
target refuses requests that the first worker still sends as duplicates. A record may come twice if two workers begin at
the same moment, if another client's record is the last one in the set-aside topic, or if the request changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace

from millstream_kafka.batch import (
    INT32_MAX,
    BatchHeader,
    Record,
    advance_sequence,
    build_batch,
    iter_batches,
    read_records,
)
from millstream_kafka.client import ClusterClient
from millstream_kafka.compression import Compression
from millstream_kafka.mirror_source import KEY
from millstream_kafka.protocol import create_partitions, create_topics, produce
from millstream_kafka.protocol.create_partitions import CreatePartitionsRequest
from millstream_kafka.protocol.create_topics import CreatableTopicConfig, CreateTopicsRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream_kafka.topic_partition import TopicPartition

from ..config.config import SET_ASIDE_SUFFIX
from ..kafka.log_reader import EARLIEST, LATEST, offset_at, read
from ..kafka.placement import placement_at_once
from ..kafka.producer_ids import new_producer
from ..kafka.topics import CREATE_TIMEOUT_MS, configs_of, factor_of

LONGEST_NAME = 249
PREFIX = "set-aside."
FIELDS = ("topic-id", "partition", "offset", "leader-epoch", "common-offset", "number", "request-id")
CHUNK_BYTES = 512 * 1024
"""A batch is sent once its records, with their headers, have this size."""
READ_BYTES = 1024 * 1024
OF_HEADERS = 512
"""Upper bound of the size of the headers added to a record."""
TIMEOUT_MS = 30_000
INT64_MAX = (1 << 63) - 1
FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
AS_THEY_ARE = {
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(INT64_MAX),
    "message.timestamp.after.max.ms": str(INT64_MAX),
}
MORE_BYTES = 1024 * 1024

logger = logging.getLogger(__name__)


class CannotResync(Exception):
    """A topic cannot be resynced as things are; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Room:
    """Requirements for the set-aside topic of a topic."""

    partitions: int
    replicas: int
    max_message_bytes: int
    """The topic's own limit."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The origin of a record in the set-aside topic, and the numbering of its batch."""

    topic_id: str
    partition: int
    offset: int
    epoch: int
    common: int
    number: int
    request_id: str
    producer: tuple[int, int] = (-1, -1)
    """Producer id and epoch."""
    next_sequence: int = 0

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        values = (self.topic_id, self.partition, self.offset, self.epoch, self.common, self.number)
        named = zip(FIELDS, (*values, self.request_id), strict=True)
        return tuple((PREFIX + name, str(value).encode()) for name, value in named)


def mark_of(record: Record, header: BatchHeader) -> Mark | None:
    """None for a record that was not set aside: everybody may write to the topic."""
    found = {name: value for name, value in record.headers if value is not None}
    try:
        topic_id, *numbers, request_id = (found[PREFIX + name].decode() for name in FIELDS)
        partition, offset, epoch, common, number = map(int, numbers)
        if not all(0 <= value <= INT64_MAX for value in (partition, offset, epoch, common, number)):
            return None
    except (KeyError, ValueError):
        return None
    next_sequence = advance_sequence(max(header.base_sequence, 0), header.record_count)
    producer = header.producer_id, header.producer_epoch
    return Mark(topic_id, partition, offset, epoch, common, number, request_id, producer, next_sequence)


class DivergedRecords:
    """Raises BrokerError, ApiError, CannotResync."""

    def __init__(self, at_target: ClusterClient, request_id: str) -> None:
        self._at_target = at_target
        self._request_id = request_id

    async def prepare(self, topic: str, room: Room) -> None:
        """Create the set-aside topic; or check that the existing one loses no records, and add missing partitions."""
        name = topic + SET_ASIDE_SUFFIX
        present = await self.partitions([topic])
        if topic not in present:
            most = min(room.max_message_bytes + MORE_BYTES, INT32_MAX)
            wanted = FOREVER | AS_THEY_ARE | {"max.message.bytes": str(most)}
            configs = [CreatableTopicConfig(key, value) for key, value in wanted.items()]
            placed = await placement_at_once(self._at_target, room.replicas)
            request = CreateTopicsRequest([placed.topic(name, room.partitions, configs)], CREATE_TIMEOUT_MS)
            (result,) = (await self._at_target.call_controller(create_topics.API, request)).topics
            if result.error_code and result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                error = ErrorCode.of(result.error_code)
                raise CannotResync(f"topic {name} cannot be created: {result.error_message or error.message}")
            logger.info("topic %s: created with %d partitions%s", name, room.partitions, placed.later)
            return
        config = await configs_of(self._at_target, name)
        if wrong := [
            f"{key}={config.get(key)}" for key, value in FOREVER.items() if config.get(key) != value
        ]:
            raise CannotResync(
                f"topic {name} would lose records by {', '.join(wrong)}: set"
                f" {', '.join(f'{key}={value}' for key, value in FOREVER.items())}"
            )
        if config.get(KEY):
            raise CannotResync(f"topic {name} is a read-only mirror of {config[KEY]}: promote or delete it")
        if present[topic] < room.partitions:
            (there,) = (await self._at_target.metadata([name])).topics
            placed = await placement_at_once(self._at_target, factor_of(there))
            more = placed.more_partitions(name, present[topic], room.partitions)
            grow = CreatePartitionsRequest([more], CREATE_TIMEOUT_MS)
            (grown,) = (await self._at_target.call_controller(create_partitions.API, grow)).results
            if grown.error_code and grown.error_code != ErrorCode.INVALID_PARTITIONS:
                raise ApiError(ErrorCode.of(grown.error_code), f"adding partitions to topic {name}")

    async def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Number of partitions of the set-aside topics that exist, by topic."""
        names = [topic + SET_ASIDE_SUFFIX for topic in topics]
        if not names:
            return {}
        found = (await self._at_target.metadata(names)).topics
        return {
            (topic.name or "").removesuffix(SET_ASIDE_SUFFIX): len(topic.partitions)
            for topic in found
            if not topic.error_code
        }

    async def last(self, topic: str, partition: int) -> Mark | None:
        """The mark of the last record in the partition of the set-aside topic; None if it has none."""
        found = await self._last(topic, partition)
        return None if found is None else found[1]

    async def _last(self, topic: str, partition: int) -> tuple[Record, Mark] | None:
        where = topic + SET_ASIDE_SUFFIX, partition
        end = await offset_at(self._at_target, where, LATEST)
        if end <= await offset_at(self._at_target, where, EARLIEST):
            return None
        answer = await read(self._at_target, where, end - 1, 1)
        records = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
        for start, header in iter_batches(records):
            for record in read_records(records[start : start + header.size]):
                if record.offset == end - 1 and (mark := mark_of(record, header)) is not None:
                    return record, mark
        return None

    async def copy(self, where: TopicPartition, topic_id: str, common: int, end: int, epoch: int) -> int:
        """Copy the target's records from ``common`` to before ``end``, unless they were copied before.

        ``epoch`` is the leader epoch under which to read them. Returns the number of records set aside.
        """
        topic, partition = where
        found = await self._last(topic, partition)
        if found is not None and await self._continues(where, *found, topic_id, common, end):
            mark = found[1]
        else:
            producer = await new_producer(self._at_target)
            mark = Mark(topic_id, partition, common - 1, -1, common, 0, self._request_id, producer)
        writer = _Writer(self._at_target, (topic + SET_ASIDE_SUFFIX, partition), mark)
        async for header, batch in self._batches(where, mark.offset + 1, end, epoch):
            if header.is_control:  # markers are no records; those of aborted transactions are set aside, too
                continue
            for record in read_records(batch):
                if record.offset > mark.offset:
                    await writer.add(record, header)
            await asyncio.sleep(0)
        await writer.flush()
        return writer.number

    async def _continues(
        self, where: TopicPartition, copied: Record, mark: Mark, topic_id: str, common: int, end: int
    ) -> bool:
        """Whether to continue after a copied record: it is of this copy, and still in the topic at its offset."""
        same = (mark.topic_id, mark.common, mark.request_id) == (topic_id, common, self._request_id)
        if not same or not common <= mark.offset < end:
            return False
        answer = await read(self._at_target, where, mark.offset, 1)
        records = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
        for start, header in iter_batches(records):
            if header.is_control or header.partition_leader_epoch != mark.epoch:
                return False
            for record in read_records(records[start : start + header.size]):
                if record.offset == mark.offset:
                    return _copy(record, header, mark)._replace(offset=copied.offset) == copied
        return False

    async def _batches(
        self, where: TopicPartition, offset: int, end: int, epoch: int
    ) -> AsyncGenerator[tuple[BatchHeader, memoryview]]:
        while offset < end:
            answer = await read(self._at_target, where, offset, READ_BYTES, epoch=epoch)
            records = answer.records if isinstance(answer.records, memoryview) else memoryview(b"")
            before = offset
            for start, header in iter_batches(records):
                if header.base_offset >= end:
                    return
                yield header, records[start : start + header.size]
                offset = header.next_offset
            if offset == before:
                raise ApiError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"reading {where[0]}-{where[1]} at offset {offset}"
                )


def _copy(record: Record, header: BatchHeader, mark: Mark) -> Record:
    """The copy of a diverged record, with its mark in the headers."""
    timestamp = header.max_timestamp if header.is_log_append_time else record.timestamp
    return Record(record.key, record.value, timestamp, (*record.headers, *mark.headers()))


class _Writer:
    """Writes records in order. Only the records and the first mark determine the batches' boundaries."""

    def __init__(self, at_target: ClusterClient, where: TopicPartition, mark: Mark) -> None:
        """``mark`` has the record before the first one, and the producer to continue."""
        self._at_target = at_target
        self._where = where
        self._mark = mark
        self._sequence = mark.next_sequence
        self._pending: list[Record] = []
        self._size = 0
        self._compression = Compression.NONE
        self.number = mark.number

    async def add(self, record: Record, header: BatchHeader) -> None:
        self.number += 1
        mark = self._mark
        of_record = replace(
            mark, offset=record.offset, epoch=header.partition_leader_epoch, number=self.number
        )
        if not self._pending:
            self._compression = header.compression
        self._pending.append(_copy(record, header, of_record))
        self._size += OF_HEADERS + len(record.key or b"") + len(record.value or b"")
        self._size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if self._size >= CHUNK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send pending records; return when all in-sync replicas have them."""
        if not self._pending:
            return
        producer_id, producer_epoch = self._mark.producer
        batch = build_batch(
            self._pending,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequence,
        )
        topic, partition = self._where
        request = ProduceRequest(
            None,
            -1,
            TIMEOUT_MS,
            [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])],
        )
        response = await self._at_target.call_leader(topic, partition, produce.BY_NAME, request)
        answer = response.responses[0].partition_responses[0]
        error = ErrorCode.of(answer.error_code)
        if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            raise CannotResync(
                f"a record with its headers is too large for topic {topic}: raise its max.message.bytes"
            )
        if error not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._at_target.forget_leaders(topic)
            raise ApiError(error, answer.error_message or f"setting records aside in {topic}-{partition}")
        self._sequence = advance_sequence(self._sequence, len(self._pending))
        self._pending, self._size = [], 0
