"""Counts records of the source back from an offset.

Offsets without a record to mirror do not count: markers and aborted transactions, and what compaction has removed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from millstream_kafka.client import ClusterClient
from millstream_kafka.topic_partition import TopicPartition

from ..kafka.log_reader import EARLIEST, headers_in, offset_at, read, records_in
from .rewrite import ranges_to_mirror

FETCH_BYTES = 1 << 20


async def offset_back(
    at_source: ClusterClient, where: TopicPartition, offset: int, records: int, *, is_compacted: bool = False
) -> int:
    """The offset from which on this many records lie before ``offset``.

    If the source has fewer, it has deleted the others, and the offset is before its log, by as many; if it
    ``is_compacted``, they are gone for good, and the offset is its start. Raises BrokerError, ApiError."""
    start = await offset_at(at_source, where, EARLIEST)
    high, missing, step = offset, records, records
    while missing and high > start:
        low = max(start, high - step)
        if (found := await _count(at_source, where, low, high)) > missing:
            return await _skip(at_source, where, low, high, found - missing)
        missing -= found
        step *= 2
        high = low
    return max(high, start) if is_compacted else max(high - missing, 0)


async def _count(at_source: ClusterClient, where: TopicPartition, low: int, high: int) -> int:
    async with aclosing(_ranges(at_source, where, low, high)) as found:
        return sum([len(some) async for some in found])


async def _skip(at_source: ClusterClient, where: TopicPartition, low: int, high: int, records: int) -> int:
    """The offset of the record after this many from ``low`` on."""
    async with aclosing(_ranges(at_source, where, low, high)) as found:
        async for some in found:
            if records < len(some):
                return some[records]
            records -= len(some)
    return low


async def _ranges(
    at_source: ClusterClient, where: TopicPartition, low: int, high: int
) -> AsyncGenerator[range]:
    """The offsets of records to mirror from ``low`` to before ``high``; none if the log does not have ``low``."""
    while low < high:
        answer = await read(at_source, where, low, FETCH_BYTES, is_committed=True)
        for some in ranges_to_mirror(records_in(answer), low, answer.aborted_transactions or ()):
            if some.start >= high:
                return
            yield range(some.start, min(some.stop, high))
        before = low
        for header in headers_in(answer):
            low = max(low, header.next_offset)
        if low == before:
            return
