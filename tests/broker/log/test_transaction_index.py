"""The file of aborted transactions: which entries it may have, and which of them a reader needs."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest

from millstream_broker.log import transaction_index
from millstream_broker.log.transaction_index import AbortedTransaction, TransactionIndex, is_sound, write

FIRST = AbortedTransaction(0, 0, 5, 0)
SECOND = AbortedTransaction(7, 3, 9, 6)
THIRD = AbortedTransaction(7, 8, 12, 8)
ENTRIES = [FIRST, SECOND, THIRD]
SIZE = 34


def entry(*values: int, version: int = 0) -> bytes:
    return struct.pack(">hqqqq", version, *values)


def of(path: Path, *entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(b"")
    for each in entries:
        index.add(str(path), each)
    return index


def collected(index: TransactionIndex, offset: int, upper: int) -> tuple[list[AbortedTransaction], bool]:
    found: list[AbortedTransaction] = []
    is_last = index.collect(offset, upper, found)
    return found, is_last


@pytest.mark.parametrize(
    ("following", "is_possible"),
    [
        (entry(0, 0, 6, 0), True),
        (entry(7, 5, 6, 0), True),
        (entry(7, 3, 6, 0, version=1), False),
        (entry(-1, 3, 6, 0), False),
        (entry(7, -1, 6, 0), False),
        (entry(7, 6, 6, 0), False),
        (entry(7, 3, 6, -1), False),
        (entry(7, 3, 5, 0), False),
        (entry(7, 3, 6, 0)[:-1], False),
        (entry(-1, 3, 6, 0, version=1), False),
        (entry(7, 3, 4, -1), False),
    ],
)
def test_entries_count_up_to_the_first_that_cannot_be_one(
    tmp_path: Path, following: bytes, is_possible: bool
) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(entry(*FIRST) + following)
    assert is_sound(str(path), 0) == is_possible
    index = TransactionIndex()
    assert not index.is_loaded
    assert len(index.load(str(path))) == (2 if is_possible else 1) * SIZE


def test_entries_are_those_of_their_segment(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    write(str(path), [SECOND])
    assert [is_sound(str(path), base) for base in (8, 9, 10)] == [True, True, False]
    write(str(path), [])
    assert is_sound(str(path), 9)


def test_a_reader_needs_those_that_begin_before_its_end(tmp_path: Path) -> None:
    index = of(tmp_path / "0.txnindex", *ENTRIES)
    assert collected(index, 0, 100) == (ENTRIES, False)
    assert collected(index, 5, 100) == (ENTRIES, False)
    assert collected(index, 6, 100) == ([SECOND, THIRD], False)
    assert collected(index, 0, 3) == ([FIRST], True), "the next begins there"
    assert collected(index, 0, 4) == ([FIRST, SECOND], True)
    assert collected(index, 0, 6) == ([FIRST, SECOND], True), (
        "later ones begin at its last stable offset, or after it"
    )
    assert collected(index, 0, 7) == ([FIRST, SECOND], True)
    assert collected(index, 0, 8) == ([FIRST, SECOND], True)
    assert collected(index, 0, 9) == (ENTRIES, False)


def test_what_is_written_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.txnindex"
    index, opened = of(path, FIRST), list[str]()
    open_file = os.open

    def noted(name: str, *more: int) -> int:
        opened.append(name)
        return open_file(name, *more)

    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(OSError, match="not written yet"):
        index.sync(str(path))
    for _ in range(2):
        index.spill(str(path))
    assert opened == [str(path)]
    assert path.read_bytes() == entry(*FIRST)
    assert stat.S_IMODE(path.stat().st_mode) & 0o133 == 0
    index.add(str(path), SECOND)
    index.spill(str(path))
    assert path.read_bytes() == entry(*FIRST) + entry(*SECOND)


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (5, 0), (6, 1), (9, 1), (10, 2), (12, 2), (13, 3)])
@pytest.mark.parametrize("is_written", [False, True])
def test_truncation_removes_markers_from_an_offset_on(
    tmp_path: Path, offset: int, left: int, is_written: bool
) -> None:
    path = tmp_path / "0.txnindex"
    index = of(path, *ENTRIES)
    if is_written:
        index.spill(str(path))
    index.truncate_to(str(path), offset)
    assert path.exists() == is_written
    index.add(str(path), AbortedTransaction(9, 13, 20, 13))
    index.spill(str(path))
    kept = b"".join(entry(*each) for each in ENTRIES[:left])
    assert path.read_bytes() == kept + entry(9, 13, 20, 13)


def test_each_change_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "0.txnindex", list[str]()
    monkeypatch.setattr(transaction_index, "fsync_file", synced.append)
    index = of(path, FIRST)
    index.spill(str(path))
    for _ in range(2):
        index.sync(str(path))
    assert len(synced) == 1
    index.add(str(path), SECOND)
    index.spill(str(path))
    index.sync(str(path))
    assert len(synced) == 2
    index.truncate_to(str(path), 9)
    index.sync(str(path))
    assert len(synced) == 3, "a shorter file, too"
    write(str(path), ENTRIES)
    loaded = TransactionIndex()
    loaded.load(str(path))
    loaded.sync(str(path))
    assert len(synced) == 4, "whoever wrote it may not have"
