"""Checks of each topic's copies, and of a group's positions.

Identity: from the source's log start on, the copy has the source's batch at each offset, byte for byte, and nothing
beyond the source. Aggregate: the copy has the source's values, each once, in order; only records that the source
deleted before they were mirrored may be absent. Copies of compacted topics are compared otherwise (keyed.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.mirror import batches_from
from millstream_kafka.batch import read_header, read_records
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.errors import ApiError
from millstream_mirror.kafka.log_reader import EARLIEST, LATEST, offset_at

ATTEMPTS, PAUSE_S = 4, 0.3


@dataclass(frozen=True)
class Log:
    """A partition from its log start on; the first batch may begin earlier."""

    start: int
    batches: list[bytes]

    @cached_property
    def records(self) -> dict[int, bytes]:
        """Values by offset."""
        found = (record for batch in self.batches for record in read_records(batch))
        return {record.offset: record.value or b"" for record in found if record.offset >= self.start}

    @cached_property
    def at(self) -> dict[int, bytes]:
        """Batches by base offset."""
        return {read_header(batch).base_offset: batch for batch in self.batches}

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.start


def read_log(cluster: ClusterProcesses, topic: str, partition: int, *, since: int = 0, last: int = 0) -> Log:
    """Read a partition from ``since`` on, or only its last offsets.

    Retries, because the leader may change. Raises ApiError or BrokerError if the last attempt fails.
    """
    where = (topic, partition)

    async def read() -> Log:
        async with ClusterClient(cluster.bootstrap) as client:
            start = max(since, await offset_at(client, where, EARLIEST))
            if last:
                start = max(start, await offset_at(client, where, LATEST) - last)
            return Log(start, await batches_from(client, where, start))

    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(ApiError, BrokerError, AssertionError):  # the last: retention was faster
            return asyncio.run(read())
        time.sleep(PAUSE_S)
    return asyncio.run(read())


def unequal(source: Log, copy: Log) -> str:
    """How an Identity copy differs from its source; "" if it equals the source as far as it goes."""
    for offset, batch in copy.at.items():
        if read_header(batch).next_offset > source.start and source.at.get(offset) != batch:
            return f"the batch at offset {offset} is not the source's"
    absent = [offset for offset in source.at if copy.start <= offset < copy.end and offset not in copy.at]
    return f"there is no batch at offset {absent[0]}" if absent else ""


def misplaced(source: Log, copy: Log) -> str:
    """How an Aggregate copy differs from its source; "" if it has each record once, in order, as far as it has come.

    The first ones may be absent if the copy's own retention has deleted some.
    """
    wanted, found = list(source.records.values()), list(copy.records.values())
    if twice := len(found) - len(set(found)):
        return f"{twice} records are there twice"
    kept = set(wanted)
    common = [value for value in found if value in kept]
    if copy.start and common:
        wanted = wanted[wanted.index(common[0]) :]
    if common != wanted[: len(common)]:
        return "records are absent or in another order"
    if common and found[-1] not in kept:
        return f"{found[-1][:40]!r} follows, which the source does not have"
    return ""


DIFFERS: dict[str, Callable[[Log, Log], str]] = {"identity": unequal, "aggregate": misplaced}


def lacks(source: Log, copy: Log, *, is_identity: bool) -> bool:
    """Whether the copy has not reached this end of the source yet."""
    if is_identity:
        return copy.end < source.end
    return bool(source.records) and source.records[max(source.records)] not in copy.records.values()


def out_of_step(source: Log, copy: Log, here: int, there: int) -> str:
    """How a position in the copy differs from one in the source; "" if both are before the same record."""
    if here in source.records and copy.records.get(there) == source.records[here]:
        return ""
    return f"position {there} for {here} is before another record"
