"""Our own client for topics that are recreated: it reads their start, and keeps a position in one of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from millstream_kafka.batch import Record
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.errors import ApiError

from .history import TOMBSTONE, Committed, CommitUnknown, FoundCommitted, Read, parse_value
from .positions import SIMPLE
from .probe import EARLIEST, FETCHED_BYTES, LATEST, Known, Probe
from .topics import ANEW, COMPACTED
from .worker import Worker

PAUSE_S = 0.3
FETCHES = 4
"""Fetches from a position. A scan makes one, at the start of the partition, but is repeated all the time."""
SCANNED_BYTES = 16_384


class Visitor(Worker):
    def run(self) -> None:
        self.visits = 0
        asyncio.run(self.visit())

    async def visit(self) -> None:
        async with self.probe() as probe:
            while not self.ending.is_set():
                for name in (ANEW, COMPACTED):
                    known = await probe.topic(name)
                    if known is not None:
                        await self.visit_topic(probe, name, known)
                await asyncio.sleep(PAUSE_S)
                self.flush_now_and_then()

    async def visit_topic(self, probe: Probe, name: str, known: Known) -> None:
        visits = [self.scan(probe, name, known, partition) for partition in range(known.partitions)]
        if name == ANEW:
            visits += [self.move_on(probe, known, partition) for partition in range(known.partitions)]
        await asyncio.gather(*(self.attempt(visit) for visit in visits))

    async def attempt(self, visit: Coroutine[Any, Any, object]) -> None:
        with contextlib.suppress(BrokerError, ApiError):
            await visit

    async def scan(self, probe: Probe, name: str, known: Known, partition: int) -> None:
        """Read from the start of the partition."""
        offset = await probe.offset(name, partition, EARLIEST)
        await self.read(probe, name, known, partition, offset, fetches=1, most_bytes=SCANNED_BYTES)

    async def move_on(self, probe: Probe, known: Known, partition: int) -> None:
        """Read from the position, and commit where the read ended."""
        asked = time.monotonic()
        found = await probe.committed(SIMPLE, ANEW, partition)
        now = time.monotonic()
        self.history.add(FoundCommitted(now, self.name, partition, max(found, -1), asked, known.id))
        start = await probe.offset(ANEW, partition, EARLIEST)
        end = await probe.offset(ANEW, partition, LATEST)
        offset = await self.read(probe, ANEW, known, partition, found if start <= found <= end else start)
        if offset == found:
            return
        asked = time.monotonic()
        try:
            await probe.commit(SIMPLE, ANEW, partition, offset)
        except (BrokerError, ApiError):
            self.history.add(CommitUnknown(asked, self.name, partition, offset, known.id))
            raise
        self.history.add(Committed(time.monotonic(), self.name, partition, offset, known.id, asked))

    async def read(
        self,
        probe: Probe,
        name: str,
        known: Known,
        partition: int,
        offset: int,
        *,
        fetches: int = FETCHES,
        most_bytes: int = FETCHED_BYTES,
    ) -> int:
        """Read on from an offset; return the offset after the last record."""
        self.visits += 1
        who = f"{self.name}#{self.visits}"
        for _ in range(fetches):
            asked = time.monotonic()
            records = await probe.fetch(name, partition, offset, most_bytes)
            now = time.monotonic()
            for record in records:
                writer, number = whose(record, partition)
                self.history.add(Read(now, who, partition, record.offset, writer, number, known.id, asked))
                offset = record.offset + 1
            if not records:
                break
        return offset


def whose(record: Record, partition: int) -> tuple[str, int]:
    """The record's writer, and its number."""
    value = record.value if record.value is not None else dict(record.headers).get(TOMBSTONE)
    writer, written_to, number = parse_value(value or b"")
    return (writer, number) if written_to == partition else (f"?{writer} of {written_to}", -1)
