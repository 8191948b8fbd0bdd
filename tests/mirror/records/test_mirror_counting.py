"""Counting records back in logs with markers, aborted transactions and holes, compared with a plain list of records."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from millstream_kafka.batch import Record, build_batch, iter_batches
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import AbortedTransaction, PartitionData
from millstream_mirror.records import counting
from millstream_mirror.records.counting import offset_back

NOW = 1_760_000_000_000
ABORT, COMMIT = (struct.pack(">hh", 0, kind) for kind in (0, 1))


class Log:
    """A source's log of one producer's transactions, which all have an end; ``mirrored``: offsets of their records."""

    def __init__(self, chance: random.Random) -> None:
        self._batches: list[bytes] = []
        self._aborted: dict[int, AbortedTransaction] = {}
        """By the offset of the marker."""
        self.mirrored: list[int] = []
        self.end = chance.randrange(1000)
        for _ in range(chance.randrange(1, 30)):
            kind = chance.choice(["plain", "committed", "aborted", "compacted", "gone"])
            if kind == "gone":
                self.end += chance.choice([1, 10, 5000])
                continue
            offsets = [self.end + at for at in range(chance.randrange(1, 9))]
            self.end = offsets[-1] + 1
            if kind == "compacted":
                offsets = [at for at in offsets[:-1] if chance.random() < 0.5] + [offsets[-1]]
            self._add([Record(b"k", b"v", NOW, offset=at) for at in offsets], offsets[0], kind)
            if kind == "aborted":
                self._aborted[self.end] = AbortedTransaction(1, offsets[0])
            else:
                self.mirrored += offsets
            if kind in ("committed", "aborted"):
                marker = Record(ABORT if kind == "aborted" else COMMIT, struct.pack(">hi", 0, 0), NOW)
                self._add([marker], self.end, "marker")
                self.end += 1
        self.start = chance.choice([0, chance.randrange(self.end + 1)])

    def _add(self, records: list[Record], base: int, kind: str) -> None:
        producer: dict[str, Any] = {}
        if kind in ("committed", "aborted", "marker"):
            producer = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
            producer |= {"control": True} if kind == "marker" else {"base_sequence": 0}
        self._batches.append(build_batch(records, base_offset=base, **producer))

    async def offset_at(self, *_: Any) -> int:
        return self.start

    async def read(self, _: Any, __: Any, offset: int, size: int, *, is_committed: bool) -> PartitionData:
        assert is_committed
        if not self.start <= offset <= self.end:
            return PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        left = [one for one in self._batches if next(iter_batches(memoryview(one)))[1].next_offset > offset]
        data = memoryview(bytearray(b"".join(left[:3])))  # a few at a time
        last = max((header.last_offset for _, header in iter_batches(data)), default=-1)
        aborted = [one for at, one in self._aborted.items() if at >= offset and one.first_offset <= last]
        return PartitionData(0, 0, self.end, records=data, aborted_transactions=aborted)


@pytest.mark.parametrize("seed", range(150))
async def test_offset_back_counts_mirrored_records(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    log = Log(chance)
    monkeypatch.setattr(counting, "read", log.read)
    monkeypatch.setattr(counting, "offset_at", log.offset_at)
    for records in {1, 2, 3, 7, len(log.mirrored), chance.randrange(1, 200)} - {0}:
        offset = chance.choice([log.end, *log.mirrored])
        there = [at for at in log.mirrored if log.start <= at < offset]
        found = await offset_back(None, ("t", 0), offset, records)  # type: ignore[arg-type]
        compacted = await offset_back(None, ("t", 0), offset, records, is_compacted=True)  # type: ignore[arg-type]
        if len(there) < records:
            assert compacted == log.start
            assert found == max(0, min(log.start, offset) - (records - len(there)))
        else:
            assert [at for at in there if at >= found] == there[-records:]
            assert compacted == found
