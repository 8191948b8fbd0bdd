"""Sparse indexes: searches find the same as scans, in few reads; and the files that a crash leaves."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex, read_all
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch

# Uneven on purpose: steps of one beside steps of millions.
steps = st.lists(st.tuples(st.integers(1, 3) | st.integers(1, 2**20), st.integers(1, 2**20)), max_size=1000)


def filled(path: Path, entries: list[tuple[int, int]], written: int) -> SparseIndex:
    """An index with ``written`` entries in the file, and the others in its tail."""
    path.write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries[:written]))
    index = SparseIndex.open(FileCache(), str(path), OFFSET_ENTRY)
    for entry in entries[written:]:
        index.append(*entry)
    return index


@settings(max_examples=200, deadline=None)
@given(steps=steps, written=st.integers(0, 1000), data=st.data())
def test_a_search_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    written: int,
    data: st.DataObject,
) -> None:
    entries = list(accumulate(steps, lambda one, step: (one[0] + step[0], one[1] + step[1])))
    index = filled(tmp_path_factory.mktemp("index") / "0.index", entries, written)
    for member in (0, 1):
        members = [entry[member] for entry in entries]
        targets = st.integers(-2, 2**31 - 1)
        if members:
            targets |= st.sampled_from(members).flatmap(lambda one: st.integers(one - 1, one + 1))
        for target in data.draw(st.lists(targets, min_size=5, max_size=5)):
            count = bisect_right(members, target)
            assert index.at_most(target, member=member) == (count, entries[count - 1] if count else None)


def test_even_entries_take_three_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a gigabyte with an entry every 4 KB: the search reads the last entry, then a block or two."""
    entries = [(n * 63 + n % 7, n * 4100 + n % 97) for n in range(1, 250_000)]
    index = filled(tmp_path / "0.index", entries, len(entries))
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    for target in range(0, 63 * 250_000, 999_983):
        del reads[:]
        index.at_most(target)
        assert len(reads) <= 3


@pytest.mark.parametrize("member", [0, 1])
def test_uneven_entries_take_few_reads_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: int
) -> None:
    """The last offset is so large that every guess is too low; the positions are even."""
    count = 60_000
    entries = [(n, 100 * n) for n in range(1, count)] + [(2**31 - 1, 100 * count)]
    index = filled(tmp_path / "0.index", entries, count)
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    for expected in (0, 1, 64, 65, 20_000, 40_001, count - 66, count - 1):
        target = 100 * expected + 99 if member else expected
        found = index.at_most(target, member=member)
        assert found == (expected, entries[expected - 1] if expected else None)
        assert len(reads) <= (3 if member else 45)
        del reads[:]


@pytest.mark.parametrize(("slope", "most"), [(63, 2.0), (1000, 7.5)])
def test_entries_take_few_reads_on_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slope: int, most: float
) -> None:
    """Along one slope the first guess is right; where the slope changes, guesses follow the entries read."""
    count = 60_000
    bend = 0 if slope == 63 else count // 2
    entries = [(n if n <= bend else bend + slope * (n - bend), n) for n in range(1, count + 1)]
    index = filled(tmp_path / "0.index", entries, count)
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    expected = range(1, count, 1499)
    for number in expected:
        entry = entries[number - 1]
        assert index.at_most(entry[0]) == (number, entry)
    assert len(reads) <= most * len(expected)


def test_a_reader_that_continues_seldom_reads_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches of 1 MB in batches of 64 KB: a block has the entries for some of them."""
    count = 16_000
    entries = [(63 * n, 64_000 * n) for n in range(1, count + 1)]
    index = filled(tmp_path / "0.index", entries, count)
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    fetches = range(2**20, 64_000 * (count - 1), 2**20)
    for limit in fetches:
        number = limit // 64_000
        assert index.at_most(limit, member=1) == (number, entries[number - 1])
    assert len(reads) <= len(fetches) / 2


changes = st.lists(
    st.tuples(st.just("append"), st.integers(1, 300))
    | st.tuples(st.just("spill"), st.just(0))
    | st.tuples(st.just("truncate"), st.integers(0, 600))
    | st.tuples(st.just("search"), st.integers(-1, 3000)),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(changes=changes)
def test_a_search_finds_what_a_scan_finds_while_the_index_changes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]]
) -> None:
    """Each append after a truncation has other steps, so that a block from before it would be wrong."""
    index = SparseIndex.open(FileCache(), str(tmp_path_factory.mktemp("index") / "0.index"), OFFSET_ENTRY)
    entries: list[tuple[int, int]] = []
    for step, (change, number) in enumerate([*changes, ("search", 500)], 1):
        if change == "append":
            for _ in range(number):
                last = entries[-1] if entries else (0, 0)
                entries.append((last[0] + step, last[1] + step))
                index.append(*entries[-1])
        elif change == "spill":
            index.spill()
        elif change == "truncate" and number <= len(entries):
            index.truncate(number)
            del entries[number:]
        else:
            found = bisect_right([first for first, _ in entries], number)
            assert index.at_most(number) == (found, entries[found - 1] if found else None)


def test_a_block_that_another_thread_read_before_a_truncation_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [(n, 10 * n) for n in range(1, 1001)]
    index = filled(tmp_path / "0.index", entries, len(entries))
    pread = OpenFile.pread

    def meanwhile(*call: Any) -> bytes:
        """The other thread has read its block; now the loop's truncates the log, and appends to it."""
        data: bytes = pread(*call)
        if len(data) > OFFSET_ENTRY.size:
            monkeypatch.undo()
            index.truncate(400)
            for n in range(401, 1001):
                index.append(2 * n, 10 * n)
            index.spill()
        return data

    monkeypatch.setattr(OpenFile, "pread", meanwhile)
    index.at_most(500)
    assert [index.at_most(target) for target in (500, 400, 802, 900)] == [
        (400, (400, 4000)), (400, (400, 4000)), (401, (802, 4010)), (450, (900, 4500))
    ]  # fmt: skip


def test_a_search_at_any_line_of_a_truncation_leaves_no_old_block(tmp_path: Path) -> None:
    """Another thread may search at any moment."""
    lines = 0
    for wanted in range(1, 30):
        entries = [(n, 10 * n) for n in range(1, 1001)]
        index = filled(tmp_path / f"{wanted}.index", entries, len(entries))
        lines = 0

        def trace(frame: Any, event: str, _: Any, wanted: int = wanted, index: SparseIndex = index) -> Any:
            nonlocal lines
            if frame.f_code is not SparseIndex.truncate.__code__:
                return None
            if event == "line":
                lines += 1
                if lines == wanted:
                    index.at_most(500)
            return trace

        sys.settrace(trace)
        try:
            index.truncate(400)
        finally:
            sys.settrace(None)
        for n in range(401, 1001):
            index.append(2 * n, 10 * n)
        index.spill()
        assert index.at_most(500) == (400, (400, 4000)), f"a search at line {wanted}"
    assert 5 < lines < 29


def test_entries_are_written_where_the_last_ones_end(tmp_path: Path, fsynced: list[str]) -> None:
    path = tmp_path / "0.index"
    index = SparseIndex.open(FileCache(), str(path), OFFSET_ENTRY)
    index.spill()
    assert (len(index), index.last, index.at_most(5), path.exists()) == (0, None, (0, None), False)
    file = OpenFile(str(path), create=True)
    index.sync(file)
    assert fsynced == []
    index.append(1, 10)
    index.sync(file)
    assert (index.pending, read_all(str(path), OFFSET_ENTRY), fsynced) == (1, [(1, 10)], [str(path)])
    index.append(2, 20)
    index.spill()
    index.append(3, 30)
    index.spill()
    assert (index.pending, len(index), index.last) == (0, 3, (3, 30))
    assert read_all(str(path), OFFSET_ENTRY) == [(1, 10), (2, 20), (3, 30)]
    del fsynced[:]
    index.sync(file)
    assert fsynced == [str(path)], "what was spilled before, too"


def test_a_spill_makes_a_missing_file(tmp_path: Path) -> None:
    index = SparseIndex.open(FileCache(), str(tmp_path / "0.index"), OFFSET_ENTRY)
    index.append(1, 10)
    index.spill()
    assert read_all(str(tmp_path / "0.index"), OFFSET_ENTRY) == [(1, 10)]


@pytest.mark.parametrize("written", [0, 2, 5])
def test_truncation_leaves_the_first_entries_and_nothing_behind_them(tmp_path: Path, written: int) -> None:
    entries = [(n, 10 * n) for n in range(1, 6)]
    path = tmp_path / "0.index"
    for count in range(6):
        index = filled(path, entries, written)
        index.truncate(count)
        assert [index[at] for at in range(len(index))] == entries[:count]
        assert path.stat().st_size == min(count, written) * OFFSET_ENTRY.size
        index.append(99, 990)
        index.spill()
        assert read_all(str(path), OFFSET_ENTRY) == [*entries[:count], (99, 990)]


def test_an_entry_that_is_cut_off_is_zeros(tmp_path: Path) -> None:
    index = filled(tmp_path / "0.index", [(1, 10), (2, 20)], 2)
    os.truncate(tmp_path / "0.index", OFFSET_ENTRY.size + 7)
    assert [index[0], index[1]] == [(1, 10), (0, 0)]
    assert len(SparseIndex.open(FileCache(), str(tmp_path / "0.index"), OFFSET_ENTRY)) == 1
    assert read_all(str(tmp_path / "0.index"), OFFSET_ENTRY) == [(1, 10)]


@settings(max_examples=100, deadline=None)
@given(garbage=st.binary(max_size=4000), cut=st.integers(0, 4000), target=st.integers(-1, 2**40))
def test_garbage_ends_a_search_too(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, cut: int, target: int
) -> None:
    """Entries are hints: whatever a file holds or has lost, a search ends and stays within it."""
    path = tmp_path_factory.mktemp("index") / "0.timeindex"
    path.write_bytes(garbage)
    index = SparseIndex.open(FileCache(), str(path), TIME_ENTRY)
    path.write_bytes(garbage[:cut])
    for member in (0, 1):
        count, entry = index.at_most(target, member=member)
        assert 0 <= count <= len(index)
        assert (entry is None) == (count == 0) or entry == (0, 0)


def test_the_time_index_is_never_behind_the_offset_index(tmp_path: Path) -> None:
    """Recovery continues after the last offset entry in the file: the largest timestamp before it must be there."""
    log = Log.open(tmp_path / "t-0", LogConfig(index_interval_bytes=0), clean=True)
    for number in range(200):
        batch = build_batch([Record(None, b"v", 1_000_000 + number)])
        log.append(batch, leader_epoch=0, now_ms=1_000_000)
        offsets = read_all(str(tmp_path / "t-0" / f"{0:020d}.index"), OFFSET_ENTRY)
        times = read_all(str(tmp_path / "t-0" / f"{0:020d}.timeindex"), TIME_ENTRY)
        assert [offset for _, offset in times] == [offset for offset, _ in offsets]
        assert number - len(offsets) < 16
    assert offsets
    log.close()
