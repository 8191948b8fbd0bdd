"""Sparse indexes: a search finds what a look at every entry finds, in a few reads; what a crash finds written."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.log.batch import Record, build_batch
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex, read_all
from millstream_broker.log.log import Log

# Uneven on purpose: steps of one beside steps of millions.
steps = st.lists(st.tuples(st.integers(1, 3) | st.integers(1, 2**20), st.integers(1, 2**20)), max_size=1000)


def filled(path: Path, entries: list[tuple[int, int]], written: int) -> SparseIndex:
    """An index with so many of its entries in the file, and the others in its tail."""
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
    """A gigabyte of log with an entry every 4 KB: the last entry, then a block or two."""
    entries = [(n * 63 + n % 7, n * 4100 + n % 97) for n in range(1, 250_000)]
    index = filled(tmp_path / "0.index", entries, len(entries))
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    for target in range(0, 63 * 250_000, 999_983):
        del reads[:]
        index.at_most(target)
        assert len(reads) <= 3


@settings(max_examples=100, deadline=None)
@given(garbage=st.binary(max_size=4000), cut=st.integers(0, 4000), target=st.integers(-1, 2**40))
def test_garbage_ends_a_search_too(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, cut: int, target: int
) -> None:
    """Entries are hints: whatever a file holds or has lost, a search ends and stays inside."""
    path = tmp_path_factory.mktemp("index") / "0.timeindex"
    path.write_bytes(garbage)
    index = SparseIndex.open(FileCache(), str(path), TIME_ENTRY)
    path.write_bytes(garbage[:cut])
    for member in (0, 1):
        count, entry = index.at_most(target, member=member)
        assert 0 <= count <= len(index)
        assert (entry is None) == (count == 0) or entry == (0, 0)


def test_the_time_index_is_never_behind_the_offset_index(tmp_path: Path) -> None:
    """Recovery goes on behind the last offset entry in the file: a largest timestamp before it must be there too."""
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
