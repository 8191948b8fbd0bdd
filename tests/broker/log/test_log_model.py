"""The log against a model of it: any order of appends, reads, look-ups, cuts and restarts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream_broker.log.batch import Record, build_batch, iter_batches, read_header, read_records
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY, read_all
from millstream_broker.log.log import Log

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1300, index_interval_bytes=150, segment_ms=2**60, retention_ms=-1)


@dataclass(frozen=True)
class Batch:
    base: int
    epoch: int
    data: bytes  # as it must be stored
    timestamps: tuple[int, ...]

    @property
    def last(self) -> int:
        return self.base + len(self.timestamps) - 1


class LogModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.files = FileCache(4)
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequence = 0
        self.flushed = 0

    def teardown(self) -> None:
        self.log.close(clean=False)
        shutil.rmtree(self.root)

    def open(self, **how: object) -> None:
        self.log = Log.open(self.root / "t-0", CONFIG, files=self.files, now_ms=NOW, **how)  # type: ignore[arg-type]

    @initialize()
    def begin(self) -> None:
        self.open(clean=True)

    # -- what it does -----------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.integers(0, 200), min_size=1, max_size=5),
        timestamp=st.integers(0, 1000),
        new_epoch=st.booleans(),
        idempotent=st.booleans(),
    )
    def append(self, sizes: list[int], timestamp: int, new_epoch: bool, idempotent: bool) -> None:
        self.epoch += new_epoch
        records = [Record(b"k", b"v" * size, timestamp + 3 * i % 5) for i, size in enumerate(sizes)]
        producer = (
            {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.sequence} if idempotent else {}
        )
        batch = bytearray(build_batch(records, **producer))  # type: ignore[arg-type]
        info = self.log.append(batch, leader_epoch=self.epoch, now_ms=NOW)
        assert (info.first_offset, info.last_offset) == (self.end, self.end + len(records) - 1)
        assert not info.duplicate
        assert read_header(batch).base_offset == self.end
        self.batches.append(Batch(self.end, self.epoch, bytes(batch), tuple(r.timestamp for r in records)))
        self.end += len(records)
        if idempotent:
            self.sequence += len(records)

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
        cut = [batch for batch in self.batches if batch.last >= offset]
        self.batches = self.batches[: len(self.batches) - len(cut)]
        self.end = min([offset, *(batch.base for batch in cut)])
        self.start = min(self.start, self.end)
        self.flushed = min(self.flushed, self.end)
        producer = self.log.producers.by_id.get(7)
        self.sequence = producer.batches[-1].last_sequence + 1 if producer else 0

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        assert self.log.delete_records_before(self.start) == self.start
        self.log.remove_deleted_files()

    @rule(limit=st.integers(0, 3000))
    def delete_by_size(self, limit: int) -> None:
        self.log.config = replace(CONFIG, retention_bytes=limit)
        segments, size = len(self.log.segments), self.log.size
        count = self.log.delete_old_segments(NOW)
        self.log.config = CONFIG
        assert self.log.size >= min(limit, size) or self.log.segments.first_offset <= self.start
        assert segments - count <= len(self.log.segments)
        self.start = max(self.start, self.log.segments.first_offset)

    @rule(how=st.sampled_from(["clean", "synced", "kill", "kill, new boot", "kill, lost recovery point"]))
    def reopen(self, how: str) -> None:
        producers = self.log.producers.by_id
        self.log.close(clean=how in ("clean", "synced"), sync=how == "synced")
        if how in ("clean", "synced"):
            self.check_index_files()
        self.open(
            clean=how in ("clean", "synced"),
            page_cache_kept=how == "kill",
            recovery_point=0 if "lost" in how else self.flushed,
            log_start_offset=self.start,
        )
        if self.batches:
            restored = {key: value.batches[-1:] for key, value in self.log.producers.by_id.items()}
            for producer_id, last in restored.items():
                # A snapshot has one timestamp a producer: when it was seen last.
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

    # -- what is seen -----------------------------------------------------------------------------------------

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
        """Reads, compares, and returns the offset behind what was read."""
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
        if len(taken) < len(rest):  # it may stop only at a limit or at the end of a segment
            following = rest[len(taken)]
            bases = [segment.base_offset for segment in self.log.segments]
            assert len(data) + len(following.data) > max_bytes or following.base in bases
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
                (t, batch.base + i, batch.epoch)
                for batch in self.batches
                for i, t in enumerate(batch.timestamps)
                if t >= timestamp and batch.base + i >= self.start
            ),
            None,
        )
        assert self.log.offset_for_timestamp(timestamp) == expected

    @precondition(lambda self: self.start == self.log.segments.first_offset)
    @rule()
    def look_up_max_timestamp(self) -> None:
        stored = [
            (-t, batch.base + i, batch.epoch)
            for batch in self.batches
            for i, t in enumerate(batch.timestamps)
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
            after = [other.base for other in readable if other.epoch > batch.epoch]
            assert self.log.end_offset_for_epoch(batch.epoch) == (batch.epoch, min([self.end, *after]))
        assert self.log.end_offset_for_epoch(self.epoch + 1) == (-1, -1)

    @rule()
    def read_records(self) -> None:
        stored = b"".join(self.log.batches_from(self.start))
        offsets = [r.offset for p, h in iter_batches(stored) for r in read_records(stored[p : p + h.size])]
        assert offsets == [
            batch.base + i
            for batch in self.batches
            if batch.last >= self.start
            for i in range(len(batch.timestamps))
        ]


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
