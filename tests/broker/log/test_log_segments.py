"""A log's segments: sizes, look-ups by offset, removal, and consecutive reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream_broker.log.files import FileCache, FileSlice, OpenFile
from millstream_broker.log.segments import Segments
from millstream_kafka.batch import Record, build_batch, read_header

NOW = 1_700_000_000_000
SIZE = len(build_batch([Record(b"k", b"v", NOW)]))


def append(segments: Segments, *offsets: int) -> None:
    """Batches of one record."""
    for offset in offsets:
        data = build_batch([Record(b"k", b"v", NOW)], base_offset=offset)
        segments.active.append(data, [read_header(data)])


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    """Offsets 10 to 13, 20 to 23 (without 22), and 30 to 31; every batch but the first has an index entry."""
    segments = Segments(str(tmp_path), FileCache())
    for base, offsets in ((10, (10, 11, 12, 13)), (20, (20, 21, 23)), (30, (30, 31))):
        segments.create(base, NOW, 0)
        append(segments, *offsets)
    return segments


def read(
    segments: Segments, offset: int, max_bytes: int = 1000, upper: int = 32, *, min_one: bool = True
) -> FileSlice | None:
    return segments.read(offset, max_bytes, upper, min_one=min_one, log_end_offset=32)


def offsets_in(part: FileSlice | None) -> list[int]:
    data = part.read() if part is not None else b""
    return [read_header(data, position).base_offset for position in range(0, len(data), SIZE)]


def renamed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of the .log files that are set aside, in order."""
    seen, rename = [], os.rename

    def recorded(old: str, new: str) -> None:
        if old.endswith(".log"):
            seen.append(int(Path(old).stem))
        rename(old, new)

    monkeypatch.setattr(os, "rename", recorded)
    return seen


def test_sizes_follow_what_is_added_and_taken_out(tmp_path: Path) -> None:
    segments = Segments(str(tmp_path), FileCache())
    for number, base in enumerate((10, 20, 30, 40)):
        segments.create(base, NOW, 4096)
        assert segments.size == number * (number + 1) // 2 * SIZE
        append(segments, *range(base, base + number + 1))
    assert segments.size == 10 * SIZE
    segments.set_aside(1, 2)
    assert segments.size == 8 * SIZE
    segments.set_aside(1, 3)
    assert (segments.size, len(segments)) == (SIZE, 1)


def test_which_segment_has_an_offset(segments: Segments) -> None:
    found = {offset: segments.index_of(offset) for offset in (0, 10, 19, 20, 29, 30, 99)}
    assert found == {0: 0, 10: 0, 19: 0, 20: 1, 29: 1, 30: 2, 99: 2}
    assert [segment.base_offset for segment in segments.from_offset(25)] == [20, 30]
    assert [segments.end_of(segment, 32) for segment in segments] == [20, 30, 32]


@pytest.mark.parametrize(
    ("start", "end", "order"),
    [
        (0, 2, [10, 20]),
        (1, 2, [20]),
        (1, 3, [30, 20]),
        (0, 3, [30, 20, 10]),
    ],
)
def test_of_the_logs_end_the_last_segment_goes_first(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, start: int, end: int, order: list[int]
) -> None:
    """A crash in the middle must leave no hole."""
    seen = renamed(monkeypatch)
    leaving = segments[start:end]
    segments.set_aside(start, end)
    assert seen == order
    assert all(segment.deleted for segment in leaving)
    assert not any(segment.deleted for segment in segments)
    assert len(segments) == 3 - len(leaving)


def test_what_was_set_aside_is_unlinked_later(segments: Segments) -> None:
    folder = Path(segments.path)
    (folder / f"{10:020d}.snapshot").touch()
    segments.set_aside(0, 2)
    assert len(list(folder.glob("*.deleted"))) == 7
    segments.remove_deleted_files()
    assert sorted(folder.iterdir()) == [
        folder / f"{30:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")
    ]
    segments.remove_deleted_files()


def test_a_prepared_segment_takes_the_place_of_all(segments: Segments) -> None:
    prepared = segments.prepare(50, NOW, 4096)
    assert (prepared.size, prepared.created_ms, len(segments)) == (0, NOW, 3)
    segments.replace_all(prepared)
    assert (segments.size, segments.active, segments.first_offset) == (0, prepared, 50)
    append(segments, 50)
    assert segments.size == SIZE


def test_a_read_ends_with_its_segment_its_bytes_or_the_upper_offset(segments: Segments) -> None:
    for _ in range(2):  # the second time continues where the first stopped
        assert offsets_in(read(segments, 11)) == [11, 12, 13]
        assert offsets_in(read(segments, 11, 2 * SIZE)) == [11, 12]
        assert offsets_in(read(segments, 11, 3 * SIZE - 1)) == [11, 12]
        assert offsets_in(read(segments, 11, upper=13)) == [11, 12]
        assert offsets_in(read(segments, 14)) == [20, 21, 23]
        assert offsets_in(read(segments, 22)) == [23]
        assert offsets_in(read(segments, 30, 2 * SIZE)) == [30, 31]
        assert read(segments, 32) is None


def test_one_batch_is_read_whatever_its_size_if_asked_for(segments: Segments) -> None:
    for max_bytes in (0, SIZE - 1):
        assert offsets_in(read(segments, 11, max_bytes)) == [11]
        assert read(segments, 11, max_bytes, min_one=False) is None
        assert read(segments, 11, max_bytes, upper=11) is None
        assert read(segments, 11, upper=11) is None


def test_reading_on_needs_no_index(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor any access to the disk, if the segment is read to its end."""
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    assert read(segments, 10, 2 * SIZE, 20) is not None
    del reads[:]
    part = read(segments, 12, 2 * SIZE, 20)
    assert reads == []
    assert offsets_in(part) == [12, 13]


def test_reading_on_at_the_end_of_a_segment_goes_on_in_the_next_one(segments: Segments) -> None:
    assert offsets_in(read(segments, 30)) == [30, 31]
    segments.create(32, NOW, 0)
    append(segments, 32)
    for offset, expected in ((32, [32]), (20, [20, 21, 23])):
        part = segments.read(offset, 1000, 33, min_one=True, log_end_offset=33)
        assert offsets_in(part) == expected


def test_reading_on_after_an_append_sees_it(segments: Segments) -> None:
    assert offsets_in(read(segments, 30)) == [30, 31]
    append(segments, 32)
    part = segments.read(32, 1000, 33, min_one=True, log_end_offset=33)
    assert offsets_in(part) == [32]


def test_a_wrong_index_is_written_anew_by_a_read(segments: Segments) -> None:
    first = segments[0]
    first.finish()
    first.unload()
    path = Path(first.path(".index"))
    right = path.read_bytes()
    path.write_bytes(bytes.fromhex("0000000100000011") + right[8:])
    assert offsets_in(read(segments, 10, 2 * SIZE - 1)) == [10]
    assert offsets_in(read(segments, 10, 3 * SIZE - 1, upper=12)) == [10, 11]
    assert path.read_bytes() == right
