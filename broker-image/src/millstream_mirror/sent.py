"""What a lane has sent since its progress: as the target has it, and compared with the source (aligning.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from millstream_kafka.batch import INT32_MAX, advance_sequence, iter_batches, read_header, read_records
from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol import describe_producers
from millstream_kafka.protocol.describe_producers import DescribeProducersRequest, TopicRequest
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from .aligning import Alignment, Fingerprint
from .history import Diverged
from .lane import HALF_OF_SEQUENCES, Lane
from .reading import EARLIEST, may_be_compacted, offset_at, read, records_in
from .rewrite import records_to_mirror
from .topics import leading

FETCH_BYTES = 1 << 20
MOST_RECORDS = 250_000
"""That are kept in memory to be compared, at some 200 bytes each."""


class Producer(NamedTuple):
    """By which the target knows the records of a lane."""

    target: TopicPartition
    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SentSince:
    records: list[Fingerprint]
    count: int
    """How many numbers were sent; the target's copy may have lost some of the records to compaction."""
    target_offset: int
    """Behind the last one in the target."""


async def sent_since(at_target: ClusterClient, lane: Lane) -> SentSince | None:
    """The lane's records in the target that its progress does not count; None: more than can be compared.

    Raises BrokerError, ApiError."""
    progress = lane.acknowledged
    records: list[Fingerprint] = []
    following, target_offset = progress.sequence, progress.target_offset
    offset = progress.target_offset
    while True:
        answer = await read(at_target, lane.target, offset, FETCH_BYTES)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            offset = await offset_at(at_target, lane.target, EARLIEST)
            continue
        before, data = offset, records_in(answer)
        for start, header in iter_batches(data):
            offset = header.next_offset
            if (header.producer_id, header.producer_epoch) != (progress.producer_id, progress.producer_epoch):
                continue
            after = advance_sequence(header.last_sequence, 1)
            if not 0 < (after - progress.sequence) & INT32_MAX < HALF_OF_SEQUENCES:
                continue
            following, target_offset = after, offset
            for record in read_records(data[start : start + header.size]):
                number = advance_sequence(header.base_sequence, record.offset - header.base_offset)
                if (number - progress.sequence) & INT32_MAX < HALF_OF_SEQUENCES:
                    records.append(Fingerprint.of(record, is_stamped=header.is_log_append_time))
            if len(records) > MOST_RECORDS:
                return None
        if offset == before or offset >= answer.high_watermark:
            return SentSince(records, (following - progress.sequence) & INT32_MAX, target_offset)


async def unsent_from(at_source: ClusterClient, lane: Lane, sent: SentSince) -> int | None:
    """The source offset where the lane continues; None: the source has deleted what follows the progress.

    Raises BrokerError, ApiError; Diverged if the source lacks some of the records, though it was not compacted."""
    position = lane.acknowledged.offset
    alignment = Alignment(position, sent.records)
    is_compacted = lane.is_compacted
    while not alignment.is_over:
        answer = await read(at_source, lane.source, position, FETCH_BYTES, is_committed=True)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        before, data = position, records_in(answer)
        aborted = answer.aborted_transactions or ()
        for record in records_to_mirror(data, position, aborted):
            alignment.see(record.offset, Fingerprint.of(record))
        for _, header in iter_batches(data):
            is_compacted = is_compacted or header.base_offset > position or may_be_compacted(header)
            position = max(position, header.next_offset)
        if position == before:
            break
    if not (alignment.has_found_all or is_compacted):
        raise Diverged(
            f"the source lacks records from offset {alignment.next_offset} on, which were mirrored"
        )
    return alignment.next_offset


async def next_numbers(
    at_target: ClusterClient, producers: Collection[Producer]
) -> dict[Producer, int | None]:
    """The number after the last one that the target has of each producer; -1: it has none; None: it cannot tell.

    From DescribeProducers (KIP-664), which reads no records."""
    found: dict[Producer, int | None] = dict.fromkeys(producers)
    leaders = (await leading(at_target, {producer.target for producer in producers})).leaders
    by_node: dict[int, dict[str, set[int]]] = {}
    for topic, partition in {producer.target for producer in producers} & leaders.keys():
        by_node.setdefault(leaders[topic, partition], {}).setdefault(topic, set()).add(partition)

    async def ask(node: int, topics: dict[str, set[int]]) -> None:
        request = DescribeProducersRequest([TopicRequest(name, [*parts]) for name, parts in topics.items()])
        try:
            response = await at_target.call_node(node, describe_producers.API, request)
        except BrokerError:
            return
        there = {
            (topic.name, one.partition_index): {
                (state.producer_id, state.producer_epoch): advance_sequence(state.last_sequence, 1)
                for state in one.active_producers
            }
            for topic in response.topics
            for one in topic.partitions
            if not one.error_code
        }
        for producer in producers:
            if producer.target in there:
                found[producer] = there[producer.target].get((producer.id, producer.epoch), -1)

    await asyncio.gather(*(ask(*each) for each in by_node.items()))
    return found


def last_record(batch: memoryview) -> Fingerprint | None:
    """The last record of a batch; None if it cannot be read."""
    try:
        *_, last = read_records(batch)
    except (ApiError, ValueError):
        return None
    return Fingerprint.of(last, is_stamped=read_header(batch).is_log_append_time)
