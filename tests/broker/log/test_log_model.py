"""The log against a model: any order of appends, reads, look-ups, cuts, deletions, compactions, restarts, and crashes
that tear or lose unflushed bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream_broker.log.compaction import Allowance, Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY, read_all
from millstream_broker.log.log import Log
from millstream_kafka.batch import (
    DELETE_HORIZON,
    BatchHeader,
    Record,
    build_batch,
    crc_matches,
    iter_batches,
    read_header,
    read_records,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1300, index_interval_bytes=150, segment_ms=2**60, retention_ms=-1)


@dataclass(frozen=True)
class Batch:
    base: int
    epoch: int
    data: bytes  # as it must be stored
    records: tuple[Record, ...]
    last: int

    @property
    def header(self) -> BatchHeader:
        return read_header(self.data)


class LogModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.files = FileCache(4)
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.epoch_starts: dict[int, int] = {}
        self.sequence = 0
        self.last_sent: tuple[bytes, int] | None = None  # the producer's last batch, and its offset
        self.flushed = 0
        self.holed = False

    def teardown(self) -> None:
        self.log.close(clean=False)
        shutil.rmtree(self.root)

    def open(self, **how: object) -> None:
        self.log = Log.open(self.root / "t-0", CONFIG, files=self.files, now_ms=NOW, **how)  # type: ignore[arg-type]

    @initialize()
    def begin(self) -> None:
        self.open(clean=True)

    # -- operations -------------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.none() | st.integers(0, 200), min_size=1, max_size=5),
        keys=st.lists(st.sampled_from("abcd"), min_size=5, max_size=5),
        timestamp=st.integers(0, 1000),
        new_epoch=st.booleans(),
        idempotent=st.booleans(),
    )
    def append(
        self, sizes: list[int | None], keys: list[str], timestamp: int, new_epoch: bool, idempotent: bool
    ) -> None:
        self.epoch += new_epoch
        records = [
            Record(keys[i].encode(), None if size is None else b"v" * size, timestamp + 3 * i % 5)
            for i, size in enumerate(sizes)
        ]
        producer = (
            {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.sequence} if idempotent else {}
        )
        batch = bytearray(build_batch(records, **producer))  # type: ignore[arg-type]
        sent = bytes(batch)
        info = self.log.append(batch, leader_epoch=self.epoch, now_ms=NOW)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + len(records) - 1)
        assert not info.duplicate
        assert read_header(batch).base_offset == self.end
        stored = tuple(r._replace(offset=self.end + i) for i, r in enumerate(records))
        self.batches.append(Batch(self.end, self.epoch, bytes(batch), stored, stored[-1].offset))
        self.epoch_starts.setdefault(self.epoch, self.end)
        if idempotent:
            self.sequence += len(records)
            self.last_sent = sent, self.end
        self.end += len(records)

    @precondition(lambda self: self.last_sent is not None)
    @rule()
    def send_again(self) -> None:
        assert self.last_sent is not None
        info = self.log.append(self.last_sent[0], leader_epoch=self.epoch, now_ms=NOW)
        assert (info.duplicate, info.first_offset) == (True, self.last_sent[1])

    @precondition(lambda self: self.last_sent is not None)
    @rule(gap=st.integers(1, 100), epoch=st.sampled_from([-1, 0, 1]))
    def send_out_of_order(self, gap: int, epoch: int) -> None:
        batch = build_batch(
            [Record(b"a", b"v", 0)],
            producer_id=7,
            producer_epoch=max(epoch, 0),
            base_sequence=self.sequence + gap,
        )
        with pytest.raises(ApiError) as caught:
            self.log.append(batch, leader_epoch=self.epoch, now_ms=NOW)
        assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule()
    def roll(self) -> None:
        self.log.roll(now_ms=NOW)

    @rule()
    def flush(self) -> None:
        self.flushed = self.log.flush()
        assert self.flushed == self.end
        assert self.log.unflushed_messages == 0

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.log.truncate_to(offset, now_ms=NOW)
        self.cut(offset)
        self.holed = not self.batches or self.batches[-1].last + 1 < self.end

    def cut(self, offset: int) -> None:
        """Remove everything from ``offset`` on."""
        cut = [batch for batch in self.batches if batch.last >= offset]
        self.batches = self.batches[: len(self.batches) - len(cut)]
        self.end = min([offset, *(batch.base for batch in cut)])
        self.start = min(self.start, self.end)
        self.flushed = min(self.flushed, self.end)
        self.epoch_starts = {epoch: at for epoch, at in self.epoch_starts.items() if at < self.end}
        if self.last_sent is not None and self.last_sent[1] >= self.end:
            # The log may know the producer by an earlier batch, if compaction has left one.
            self.last_sent = None
            producer = self.log.producers.by_id.get(7)
            self.sequence = producer.batches[-1].last_sequence + 1 if producer else 0
            if producer:
                last = producer.batches[-1]
                assert last.last_offset < self.log.log_end_offset

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        assert self.log.delete_records_before(self.start) == self.start
        self.log.remove_deleted_files()
        self.forget_deleted()

    def forget_deleted(self) -> None:
        first = self.log.segments.first_offset
        self.batches = [batch for batch in self.batches if batch.base >= first]

    @rule(age=st.integers(0, 1010))
    def delete_by_time(self, age: int) -> None:
        self.log.config = replace(CONFIG, retention_ms=age)
        self.log.delete_old_segments(1010)
        self.log.config = CONFIG
        first = self.log.segments.first_offset
        for batch in self.batches:
            if batch.base < first:
                assert 1010 - batch.header.max_timestamp > age or batch.last < self.start
        old = [1010 - batch.header.max_timestamp > age for batch in self.batches if batch.base >= first]
        assert not old or not all(old)
        self.start = max(self.start, first)
        self.forget_deleted()

    @rule(most=st.sampled_from([1, 3, 1000]))
    def compact(self, most: int) -> None:
        """Removes the records that a later dirty record replaces, and the tombstones seen by an earlier pass."""
        self.log.config = replace(CONFIG, cleanup_policy="compact", delete_retention_ms=0)
        end = self.log.segments.active.base_offset
        compaction = Compaction(self.log, end, now_ms=NOW, allowance=Allowance(max_keys=most))
        dirty = compaction.clean_until
        while compaction.work():
            assert compaction.commit()
        compaction.finish()
        self.log.remove_deleted_files()
        self.log.config = CONFIG
        until = compaction.clean_until
        assert until > dirty or not any(dirty <= batch.base < end for batch in self.batches)
        assert self.log.first_dirty_offset == max(until, dirty)
        bases = [*(segment.base_offset for segment in self.log.segments if segment.base_offset >= until), end]
        latest = {r.key: r.offset for b in self.batches if dirty <= b.last < until for r in b.records}
        producers = self.log.producers.by_id.values()
        kept_empty = {producer.batches[-1].last_offset for producer in producers} | {self.end - 1}
        found = (
            {read_header(data).base_offset: data for data in self.log.batches_from(self.batches[0].base)}
            if self.batches
            else {}
        )
        left = []
        for batch in self.batches:
            data = found.pop(batch.base, b"")
            if batch.base < min(bases) and until > self.log.segments.first_offset:
                was_met = bool(batch.header.attributes & DELETE_HORIZON)
                records = tuple(
                    r
                    for r in batch.records
                    if r.offset >= latest.get(r.key, 0) and (r.value is not None or not was_met)
                )
                if not records and batch.last not in kept_empty:
                    assert not data
                    continue
                assert tuple(read_records(data)) == records
                assert crc_matches(data)
                header = read_header(data)
                assert (header.last_offset, header.base_sequence) == (batch.last, batch.header.base_sequence)
                batch = replace(batch, data=data, records=records)
            assert data == batch.data
            left.append(batch)
        assert not found
        self.batches = left

    @rule(limit=st.integers(0, 3000))
    def delete_by_size(self, limit: int) -> None:
        self.log.config = replace(CONFIG, retention_bytes=limit)
        segments, size = len(self.log.segments), self.log.size
        count = self.log.delete_old_segments(NOW)
        self.log.config = CONFIG
        assert self.log.size >= min(limit, size) or self.log.segments.first_offset <= self.start
        assert segments - count <= len(self.log.segments)
        self.start = max(self.start, self.log.segments.first_offset)
        self.forget_deleted()

    @rule(
        torn=st.integers(0, 70),
        lost=st.integers(0, 1300),
        how=st.sampled_from(["clean", "synced", "kill", "kill, new boot", "kill, lost recovery point"]),
    )
    def reopen(self, how: str, torn: int, lost: int) -> None:
        producers = self.log.producers.by_id
        dirty, active = self.log.first_dirty_offset, self.log.segments.active
        if how == "synced":
            self.log.flush()
        self.log.close(clean=how in ("clean", "synced"))
        if how in ("clean", "synced"):
            self.check_index_files()
        else:
            with open(active.path(), "r+b") as file:
                if how == "kill, new boot":
                    safe = [b for b in self.batches if active.base_offset <= b.base and b.last < self.flushed]
                    file.truncate(max(active.size - lost, sum(len(b.data) for b in safe)))
                file.seek(0, os.SEEK_END)
                file.write(build_batch([Record(b"k", b"torn", NOW)], base_offset=self.end)[:torn])
                file.seek(0)
                left = file.read()  # the torn byte may equal the lost one
        self.open(
            clean=how in ("clean", "synced"),
            page_cache_kept=how == "kill",
            recovery_point=0 if "lost" in how else self.flushed,
            log_start_offset=self.start,
        )
        self.log.first_dirty_offset = min(dirty, self.log.log_end_offset)
        # A cut within a hole left by compaction: nothing on disk says how far the log went.
        known = max([self.start, active.base_offset, *(batch.last + 1 for batch in self.batches)])
        if known < self.end and self.holed:
            self.cut(known)
        self.holed = False
        if how == "kill, new boot":
            whole = [b for b in self.batches if b.base < active.base_offset]
            for batch in self.batches[len(whole) :]:
                if not left.startswith(batch.data):
                    break
                left = left[len(batch.data) :]
                whole.append(batch)
            if len(whole) < len(self.batches):
                start = self.start
                self.cut(self.batches[len(whole)].base)
                if self.end < start:  # what is left lies before the log start; offsets never go back
                    self.start = self.end = start
                    self.batches = []
                return
        if self.batches:
            restored = {key: value.batches[-1:] for key, value in self.log.producers.by_id.items()}
            for producer_id, last in restored.items():
                # A snapshot has one timestamp per producer: when it was last seen.
                assert [b[:-1] for b in last] == [b[:-1] for b in producers[producer_id].batches[-1:]]

    def check_index_files(self) -> None:
        """Each entry names the last offset of the batch at its position; the last time is the segment's largest."""
        for path in (self.root / "t-0").glob("*.log"):
            base, data = int(path.stem), path.read_bytes()
            ends = dict(iter_batches(data))
            entries = read_all(str(path.with_suffix(".index")), OFFSET_ENTRY)
            assert [(ends[p].last_offset - base, p) for _, p in entries] == entries == sorted(set(entries))
            times = read_all(str(path.with_suffix(".timeindex")), TIME_ENTRY)
            assert times == sorted(set(times))
            if data:
                assert times[-1][0] == max(header.max_timestamp for header in ends.values())

    # -- observations -----------------------------------------------------------------------------------------

    @invariant()
    def ends(self) -> None:
        assert self.log.log_start_offset == self.start
        assert self.log.log_end_offset == self.end
        paths = list((self.root / "t-0").glob("*.log"))
        assert self.log.size == sum(path.stat().st_size for path in paths)

    @rule(data=st.data(), max_bytes=st.integers(0, 2000), min_one=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, min_one: bool) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        uppers = [self.end, *(batch.base for batch in self.batches)]
        upper = data.draw(st.sampled_from(uppers))
        self.check_read(offset, max_bytes, upper, min_one)

    def check_read(self, offset: int, max_bytes: int, upper: int, min_one: bool) -> int:
        """Read and compare; return the offset after the last one read."""
        found = self.log.read(offset, max_bytes, upper=upper, min_one=min_one)
        rest = [batch for batch in self.batches if batch.last >= offset and batch.last < upper]
        if found is None:
            assert not rest or (not min_one and len(rest[0].data) > max_bytes)
            return offset
        data = found.read()
        assert len(found) == len(data) > 0
        taken: list[Batch] = []
        while sum(len(batch.data) for batch in taken) < len(data):
            taken.append(rest[len(taken)])
        assert data == b"".join(batch.data for batch in taken)
        assert len(data) <= max_bytes or (min_one and len(taken) == 1)
        if len(taken) < len(rest):  # only a limit or the end of a segment may end a read early
            following = rest[len(taken)]
            bases = [segment.base_offset for segment in self.log.segments]
            is_next_segments = any(taken[-1].last < base <= following.base for base in bases)
            assert len(data) + len(following.data) > max_bytes or is_next_segments
        return taken[-1].last + 1

    @rule(max_bytes=st.integers(1, 1000))
    def read_through(self, max_bytes: int) -> None:
        offset = self.start
        while offset < self.end and self.batches and self.batches[-1].last >= offset:
            reached = self.check_read(offset, max_bytes, self.end, True)
            assert reached > offset
            offset = reached

    @rule(timestamp=st.integers(0, 1010))
    def look_up_timestamp(self, timestamp: int) -> None:
        expected = next(
            (
                (record.timestamp, record.offset, batch.epoch)
                for batch in self.batches
                for record in batch.records
                if record.timestamp >= timestamp and record.offset >= self.start
            ),
            None,
        )
        assert self.log.offset_for_timestamp(timestamp) == expected

    @precondition(lambda self: self.start == self.log.segments.first_offset)
    @precondition(lambda self: all(batch.records for batch in self.batches))
    @rule()
    def look_up_max_timestamp(self) -> None:
        stored = [
            (-record.timestamp, record.offset, batch.epoch)
            for batch in self.batches
            for record in batch.records
            if batch.base >= self.start
        ]
        found = self.log.max_timestamp()
        if not stored:
            assert found is None
        else:
            timestamp, offset, epoch = min(stored)
            assert found == (-timestamp, offset, epoch)

    @rule()
    def look_up_epochs(self) -> None:
        readable = [batch for batch in self.batches if batch.last >= self.start]
        for batch in readable:
            after = [at for epoch, at in self.epoch_starts.items() if epoch > batch.epoch]
            found = self.log.epochs.end_offset(batch.epoch, self.log.log_end_offset)
            assert found == (batch.epoch, min([self.end, *after]))
        assert self.log.epochs.end_offset(self.epoch + 1, self.log.log_end_offset) == (-1, -1)

    @rule()
    def read_records(self) -> None:
        stored = b"".join(self.log.batches_from(self.start))
        offsets = [r.offset for p, h in iter_batches(stored) for r in read_records(stored[p : p + h.size])]
        assert offsets == [
            record.offset for batch in self.batches if batch.last >= self.start for record in batch.records
        ]


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_what_was_torn_may_be_just_what_was_lost() -> None:
    """A regression in the model: the torn byte equals the lost one, so the batch is whole again."""
    model = LogModel()
    model.begin()
    model.append(sizes=[None] * 5, keys=list("abcda"), timestamp=0, new_epoch=False, idempotent=False)
    model.reopen(how="clean", torn=0, lost=0)
    model.reopen(how="kill, new boot", torn=1, lost=1)
    model.ends()
    model.read_records()
    model.teardown()
