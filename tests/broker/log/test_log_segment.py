"""One segment compared with a scan of every batch: look-ups, boundaries, timestamps, indexes, reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex, read_all
from millstream_broker.log.segment import IndexMismatchError, Segment, scan_headers
from millstream_kafka.batch import HEADER_SIZE, INT32_MAX, BatchHeader, Record, build_batch, read_header

BASE = 1000
Batches = list[tuple[int, BatchHeader, bytes]]
"""Position, header and bytes of each batch."""
TIMESTAMPS = [7, 3, 9, 9, 2, 14, 15, 11, 16, 16, 17, 21, 18, 30, 29, 31]
"""Timestamp of each batch's last record."""


def batch(offset: int, *timestamps: int, size: int = 10) -> bytes:
    records = [Record(b"k", b"v" * size, timestamp) for timestamp in timestamps]
    return build_batch(records, base_offset=offset, leader_epoch=4)


def varied(base: int = BASE) -> list[bytes]:
    """Batches of one to three records, of different sizes, some with gaps between them."""
    made, offset = [], base
    for number, timestamp in enumerate(TIMESTAMPS):
        count = 1 + number % 3
        made.append(batch(offset, *[timestamp - 1] * (count - 1), timestamp, size=20 * (number % 5)))
        offset += count + 4 * (number % 7 == 3)
    return made


def laid_out(made: list[bytes]) -> Batches:
    position, batches = 0, []
    for data in made:
        batches.append((position, read_header(data), data))
        position += len(data)
    return batches


def write(folder: Path, made: list[bytes], *, base: int = BASE, interval: int = 0) -> tuple[Segment, Batches]:
    segment = Segment(FileCache(), str(folder), base, index_interval_bytes=interval)
    segment.create()
    for data in made:
        segment.append(data, [read_header(data)])
    return segment, laid_out(made)


def reopen(segment: Segment, *, interval: int = 0) -> Segment:
    """Close and open the segment, as after a clean stop."""
    segment.finish()
    segment.unload()
    return opened(segment, interval=interval)


def opened(segment: Segment, *, interval: int = 0) -> Segment:
    folder = os.path.dirname(segment.path())
    return Segment(FileCache(), folder, segment.base_offset, size=segment.size, index_interval_bytes=interval)


def offset_entries(segment: Segment) -> list[tuple[int, int]]:
    return read_all(segment.path(".index"), OFFSET_ENTRY)


def time_entries(segment: Segment) -> list[tuple[int, int]]:
    return read_all(segment.path(".timeindex"), TIME_ENTRY)


def write_index(segment: Segment, *entries: tuple[int, int]) -> None:
    Path(segment.path(".index")).write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))


def write_time_index(segment: Segment, *entries: tuple[int, int]) -> None:
    Path(segment.path(".timeindex")).write_bytes(b"".join(TIME_ENTRY.pack(*entry) for entry in entries))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Positions and lengths read from .log files."""
    seen: list[tuple[int, int]] = []
    pread = OpenFile.pread

    def recorded(file: OpenFile, length: int, position: int) -> bytes:
        if file.path.endswith(".log"):
            seen.append((position, length))
        return pread(file, length, position)

    monkeypatch.setattr(OpenFile, "pread", recorded)
    return seen


# -- a new segment ------------------------------------------------------------------------------------------------


def test_an_empty_segment_needs_no_file(tmp_path: Path) -> None:
    segment = Segment(FileCache(), str(tmp_path), BASE)
    assert (segment.size, segment.created_ms, segment.index_interval_bytes) == (0, 0, 4096)
    assert (segment.max_timestamp, segment.synced, segment.deleted) == (-1, False, False)
    segment.finish()
    assert list(tmp_path.iterdir()) == []
    segment.create()
    assert len(list(tmp_path.iterdir())) == 3
    assert segment.rolling_timestamp() == -1
    assert list(segment.headers_from(BASE)) == []
    assert segment.records_from_timestamp(-1, BASE) is None


def test_offsets_of_a_segment_lie_within_31_bits(tmp_path: Path) -> None:
    segment = Segment(FileCache(), str(tmp_path), 2**40)
    assert segment.has_room_for(2**40 + INT32_MAX)
    assert not segment.has_room_for(2**40 + INT32_MAX + 1)


# -- indexes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beyond", "indexed"), [(0, [2, 4, 6]), (-1, [1, 2, 3, 4, 5, 6])])
def test_an_entry_follows_more_than_an_interval_of_bytes(
    tmp_path: Path, beyond: int, indexed: list[int]
) -> None:
    """The interval is a batch's size, or a byte less. After a restart it counts from the last entry."""
    made = [batch(BASE + number, number) for number in range(7)]
    interval = len(made[0]) + beyond
    segment, batches = write(tmp_path, made, interval=interval)
    segment.finish()
    entries = [(number, batches[number][0]) for number in indexed]
    assert offset_entries(segment) == entries
    for resumed in range(7):
        again = opened(segment, interval=interval)
        position = again.resume_indexing(BASE + resumed)
        assert position == max([at for number, at in entries if number <= resumed], default=0)
        for at, header in again.headers(position):
            again.add_index_entries(at, header.size, header.last_offset, header.max_timestamp)
        again.finish()
        assert offset_entries(again) == entries


def test_the_time_index_has_each_largest_timestamp_once(tmp_path: Path) -> None:
    segment, batches = write(tmp_path, varied())
    segment.finish()
    largest, expected = -1, []
    for number, (_, header, _) in enumerate(batches):
        if header.max_timestamp > largest:
            largest, named = header.max_timestamp, (header.max_timestamp, header.last_offset - BASE)
        if number and named not in expected:
            expected.append(named)
    assert time_entries(segment) == expected
    assert (segment.max_timestamp, opened(segment).max_timestamp) == (31, 31)


def test_batches_that_are_appended_together_are_indexed_one_by_one(tmp_path: Path) -> None:
    made = varied()
    segment, batches = write(tmp_path, made)
    segment.finish()
    expected = offset_entries(segment), time_entries(segment)
    assert expected[0] == [(header.last_offset - BASE, position) for position, header, _ in batches[1:]]
    (tmp_path / "together").mkdir()
    together, _ = write(tmp_path / "together", [])
    together.append(made[0] + made[1], [read_header(data) for data in made[:2]])
    together.append(b"".join(made[2:]), [read_header(data) for data in made[2:]])
    together.finish()
    assert (offset_entries(together), time_entries(together)) == expected
    assert (together.size, together.rolling_timestamp()) == (segment.size, 7)


def test_of_equal_timestamps_the_first_batch_is_indexed(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, [batch(BASE + number, 5) for number in range(4)])
    segment.finish()
    assert time_entries(segment) == [(5, 0)]
    assert len(offset_entries(segment)) == 3


def test_index_entries_count_before_they_are_written_out(tmp_path: Path) -> None:
    segment, batches = write(tmp_path, varied()[:8])
    assert segment.index_entries() == len(batches) - 1
    assert offset_entries(segment) == []
    assert reopen(segment).index_entries() == len(batches) - 1


@pytest.mark.parametrize("base", [0, BASE])
def test_rebuilt_indexes_are_as_they_were(tmp_path: Path, base: int) -> None:
    segment, _ = write(tmp_path, [batch(base + number, number) for number in range(5)], base=base)
    segment.finish()
    expected = offset_entries(segment), time_entries(segment)
    segment = reopen(segment)
    segment.rebuild_indexes()
    assert (offset_entries(segment), time_entries(segment)) == expected


def test_indexing_resumes_at_the_last_entry_before_an_offset(tmp_path: Path) -> None:
    segment, batches = write(tmp_path, varied())
    segment.finish()
    entries, times = offset_entries(segment), time_entries(segment)
    for offset in range(
        batches[-1][1].next_offset + 1, BASE - 2, -1
    ):  # each cut shortens what the one before left
        again = opened(segment)
        position = again.resume_indexing(offset)
        kept = [entry for entry in entries if entry[0] <= offset - BASE]
        kept_times = [entry for entry in times if kept and entry[1] <= kept[-1][0]]
        assert position == (kept[-1][1] if kept else 0)
        assert (offset_entries(again), time_entries(again)) == (kept, kept_times)
        assert again.max_timestamp == (kept_times[-1][0] if kept_times else -1)


@pytest.mark.parametrize("beyond", [5, 10_000])
def test_indexing_begins_anew_where_an_entry_is_wrong(tmp_path: Path, beyond: int) -> None:
    segment, batches = write(tmp_path, varied())
    segment = reopen(segment)
    end = batches[-1][1].last_offset
    write_index(segment, (3, 100), (end - BASE, batches[-1][0] + beyond))
    assert segment.resume_indexing(end) == 0
    assert (offset_entries(segment), time_entries(segment)) == ([], [])


def test_zeros_at_the_end_of_an_index_are_not_believed(tmp_path: Path) -> None:
    """A killed Kafka leaves them; they look like an entry for a first batch of one record."""
    segment, batches = write(tmp_path, [batch(BASE + number, number + 1) for number in range(5)])
    segment = reopen(segment)
    entries, end = offset_entries(segment), batches[-1][1].last_offset
    write_index(segment, *entries, (0, 0), (0, 0))
    assert opened(segment).resume_indexing(end) == 0
    assert offset_entries(segment) == []
    write_index(segment, *entries, (0, 0), (0, 0))
    assert next(opened(segment).headers_from(end))[0] == batches[-1][0]
    assert offset_entries(segment) == entries


def test_a_full_index_is_one_without_room_for_both_entries_and_the_last_timestamp(tmp_path: Path) -> None:
    for timestamps, most in ((range(20), 4), ([5] * 20, 8)):
        folder = tmp_path / str(most)
        folder.mkdir()
        segment, _ = write(folder, [])
        for number, timestamp in enumerate(timestamps):
            assert segment.is_index_full(68) == (number > most)  # the first batch has no entry
            data = batch(BASE + number, timestamp)
            segment.append(data, [read_header(data)])


def test_an_fsync_leaves_out_indexes_that_are_missing(tmp_path: Path, fsynced: list[str]) -> None:
    """A restart rebuilds missing indexes, but would trust empty ones."""
    segment, _ = write(tmp_path, varied())
    segment = reopen(segment)
    for suffix in (".index", ".timeindex"):
        os.unlink(segment.path(suffix))
    segment.sync()
    assert fsynced == [segment.path()]
    assert not os.path.exists(segment.path(".index"))


# -- looking up offsets -------------------------------------------------------------------------------------------


def test_headers_from_any_offset(tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    """Both with index entries still in memory and after a restart."""
    segment, batches = write(tmp_path, varied())
    assert offset_entries(segment) == []
    for restarted in (False, True):
        again = reopen(segment) if restarted else segment
        for offset in range(BASE - 2, batches[-1][1].next_offset + 2):
            expected = [(at, header) for at, header, _ in batches if header.last_offset >= offset]
            indexed = [at for at, header, _ in batches[1:] if header.last_offset <= offset]
            for look_up in (again.headers_from, again.scan_from):
                del reads[:]
                assert list(look_up(offset)) == expected
                assert min(reads)[0] == max(indexed, default=0), (
                    "what lies before the index entry is not read"
                )


@pytest.mark.parametrize("wrong", [(2, 30), (4, 10_000), (3, -1), (0, 0)])
def test_headers_are_found_whatever_the_index_says(tmp_path: Path, wrong: tuple[int, int]) -> None:
    """A look-up on the loop repairs the index, too."""
    segment, batches = write(tmp_path, varied())
    segment = reopen(segment)
    right = offset_entries(segment)
    write_index(segment, wrong)
    offset = batches[7][1].base_offset
    expected = [(at, header) for at, header, _ in batches[7:]]
    assert list(opened(segment).scan_from(offset)) == expected
    assert offset_entries(segment) == [wrong]
    assert list(segment.headers_from(offset)) == expected
    assert offset_entries(segment) == right


def test_boundaries_of_any_position_limit_and_offset(tmp_path: Path) -> None:
    """The end of the last batch that lies within the limit and below the offset, and the offset after it."""
    made = varied()[:9]
    segment, batches = write(tmp_path, made)
    segment = reopen(segment)
    end_offset = batches[-1][1].next_offset
    limits = {at + beyond for at, _, _ in batches for beyond in (-1, 0, 1)} | {segment.size - 1, segment.size}
    for start, (position, _, _) in enumerate(batches):
        for limit in limits:
            for upper in range(BASE, end_offset + 1):
                fitting = [
                    (at + header.size, header.next_offset)
                    for at, header, _ in batches[start:]
                    if at + header.size <= limit and header.last_offset < upper
                ]
                end, next_offset = segment.boundary(position, limit, upper, end_offset)
                if fitting:
                    # After an index entry, the next offset is the next batch's: there may be a gap.
                    following = [header.base_offset for at, header, _ in batches if at == end]
                    assert end == fitting[-1][0]
                    assert next_offset in (fitting[-1][1], *following)
                else:
                    assert (end, next_offset) == (position, None)
    everything = segment.size, end_offset
    assert segment.boundary(0, segment.size, end_offset, end_offset) == everything
    assert segment.boundary(0, segment.size + 1, end_offset + 1, end_offset) == everything


def test_a_boundary_by_a_wrong_index_is_refused(tmp_path: Path) -> None:
    segment, batches = write(tmp_path, varied())
    segment = reopen(segment)
    write_index(segment, (5, batches[3][0]))
    with pytest.raises(IndexMismatchError):
        segment.boundary(0, segment.size - 1, 10**6, 10**6)
    write_index(segment, (5, segment.size - 5))
    with pytest.raises(IndexMismatchError):
        opened(segment).boundary(0, segment.size - 1, 10**6, 10**6)


# -- timestamps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["none", "missing", "garbage", "far"])
def test_the_first_record_from_any_timestamp(tmp_path: Path, damage: str) -> None:
    segment, batches = write(tmp_path, varied())
    again = reopen(segment)
    if damage == "missing":
        os.unlink(again.path(".timeindex"))
    if damage == "garbage":
        write_time_index(again, (0, 9), (1, 12), (40, 13))
    if damage == "far":
        write_time_index(again, (0, 1000), (1, 2000))
    records = [
        (TIMESTAMPS[number] - (offset != header.last_offset), offset, 4)
        for number, (_, header, _) in enumerate(batches)
        for offset in range(header.base_offset, header.next_offset)
    ]
    for timestamp in range(-1, 33):
        for start in range(BASE + timestamp % 2, batches[-1][1].next_offset + 1, 2):
            found = [record for record in records if record[0] >= timestamp and record[1] >= start]
            expected = found[0] if found else None
            assert again.records_from_timestamp(timestamp, start) == expected
            if damage == "none":
                assert segment.records_from_timestamp(timestamp, start) == expected


def test_a_look_up_by_time_begins_at_the_last_older_entry(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    segment, batches = write(tmp_path, [batch(BASE + number, 100 + number) for number in range(10)])
    for make in (lambda: segment, lambda: reopen(segment)):
        each = make()
        for number in range(2, 10):
            del reads[:]
            assert each.records_from_timestamp(100 + number, BASE) == (100 + number, BASE + number, 4)
            position, header, _ = batches[number - 1]
            assert min(reads)[0] == position
            assert (position, header.size) not in reads, "of an older batch the header is enough"


def test_the_largest_timestamp_is_read_from_the_last_entry(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    for name, timestamps in (("ascending", range(10)), ("one entry", [0, 9, 0, 0, 9])):
        folder = tmp_path / name
        folder.mkdir()
        segment, _ = write(folder, [batch(BASE + at, each) for at, each in enumerate(timestamps)])
        segment = reopen(segment)
        del reads[:]
        assert segment.max_timestamp == 9
        assert min(reads)[0] > 0, "its index entry's batch, not all of them"
        del reads[:]
        assert segment.max_timestamp == 9
        assert reads == [], "once"


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [(40, 3)],  # no batch has this offset
        [(3, 5), (40, 2000)],
        [(8, 5), (16, 15)],  # the batch has another timestamp
        [(10, 1), (0, 0), (0, 0)],  # zeros left by Kafka, and a first batch that has them
    ],
)
def test_the_largest_timestamp_is_read_from_the_batches_where_the_index_is_wrong(
    tmp_path: Path, entries: list[tuple[int, int]]
) -> None:
    timestamps = [0, 10, 4, 50, 50, 12]
    segment, _ = write(tmp_path, [batch(BASE + at, each) for at, each in enumerate(timestamps)])
    segment = reopen(segment)
    write_time_index(segment, *entries)
    assert segment.max_timestamp == 50


def test_without_timestamps_nothing_is_indexed_by_time(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, [batch(BASE + number, -1) for number in range(5)])
    segment.finish()
    assert (segment.max_timestamp, time_entries(segment)) == (-1, [])
    segment = reopen(segment)
    assert (segment.max_timestamp, segment.rolling_timestamp()) == (-1, -1)
    segment.finish()
    segment.rebuild_indexes()
    assert (segment.max_timestamp, time_entries(segment)) == (-1, [])
    assert len(offset_entries(segment)) == 4


def test_the_age_of_a_segment_is_its_largest_timestamp_else_the_files(tmp_path: Path) -> None:
    for timestamp, expected in ((0, 0), (5, 5), (-1, 1_234_567_890_000)):
        folder = tmp_path / str(timestamp)
        folder.mkdir()
        segment, _ = write(folder, [batch(BASE, timestamp)])
        os.utime(segment.path(), (0, 1_234_567_890))
        assert segment.retention_timestamp() == expected
    segment.created_ms = 77
    os.unlink(segment.path())
    assert segment.retention_timestamp() == 77


def test_segment_ms_counts_from_the_first_batch(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, varied())
    assert segment.rolling_timestamp() == 7
    assert reopen(segment).rolling_timestamp() == 7
    segment.truncate(0)
    data = batch(BASE, 12)
    segment.append(data, [read_header(data)])
    assert segment.rolling_timestamp() == 12


# -- reading and verifying ----------------------------------------------------------------------------------------


def test_a_header_is_where_a_whole_batch_is(tmp_path: Path) -> None:
    made = [*varied(), build_batch([], base_offset=2000, last_offset=2000)]  # the last batch is only a header
    segment, batches = write(tmp_path, made)
    assert len(made[-1]) == HEADER_SIZE
    for position, header, _ in batches:
        assert segment.header_at(position) == header
    for nowhere in (-1, 1, segment.size - 1, segment.size, segment.size + 1000):
        assert segment.header_at(nowhere) is None
    assert [found for _, found in segment.headers(0)] == [header for _, header, _ in batches]
    for beyond in (-1, segment.size, segment.size + 1000):
        assert list(segment.headers(beyond)) == []
    torn = opened(segment)
    torn.size = batches[-2][0] + batches[-2][1].size - 1
    assert torn.header_at(batches[-2][0]) is None
    assert [at for at, _ in torn.headers(0)] == [at for at, _, _ in batches[:-2]]
    part = segment.slice(batches[3][0], batches[5][0])
    assert part.read() == made[3] + made[4]


def test_a_batch_whose_header_cannot_be_ends_a_scan(tmp_path: Path) -> None:
    made = varied()
    segment, batches = write(tmp_path, made)
    damaged = bytearray(made[4])
    damaged[16] = 1  # magic
    file = segment.open_file()
    file.pwrite(damaged, batches[4][0])
    assert segment.header_at(batches[4][0]) is None
    file.pwrite(damaged[:HEADER_SIZE], 0)
    assert (opened(segment).max_timestamp, list(segment.headers(0))) == (-1, [])
    file.pwrite(made[0], 0)
    assert [at for at, _ in segment.headers(0)] == [at for at, _, _ in batches[:4]]


def test_headers_are_read_many_at_once_and_large_batches_skipped(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    small = [batch(BASE + number, 1, size=39) for number in range(200)]
    large = [batch(BASE + 200 + number, 1, size=9000) for number in range(3)]
    segment, batches = write(tmp_path, [*small, *large, *varied(BASE + 300)], interval=10**6)
    del reads[:]
    assert len(list(scan_headers(segment.open_file(), 0, segment.size))) == len(batches)
    each = len(small[0])
    expected, position = [], 0
    while position < 200 * each:
        expected.append((position, 8192))
        while position < 200 * each and position + HEADER_SIZE <= expected[-1][0] + 8192:
            position += each
    first_large, second_large, third_large, tail = (at for at, _, _ in batches[200:204])
    expected += [(second_large, HEADER_SIZE), (third_large, HEADER_SIZE), (tail, HEADER_SIZE)]
    expected.append((batches[204][0], segment.size - batches[204][0]))
    assert first_large + HEADER_SIZE <= expected[-5][0] + 8192
    assert reads == expected


def test_valid_batches_end_where_one_is_damaged(tmp_path: Path) -> None:
    made = varied()
    segment, batches = write(tmp_path, made)
    for position, header, _ in batches:
        assert segment.intact_end(position, header.base_offset) == segment.size
        assert segment.intact_end(position, header.base_offset + 1) == position
        file = segment.open_file()
        for at in (position + 21, position + header.size - 1):
            (byte,) = file.pread(1, at)
            file.pwrite(bytes([byte ^ 1]), at)
            assert segment.intact_end(0, BASE) == position
            file.pwrite(bytes([byte]), at)
    assert segment.intact_end(0, BASE) == segment.size


def test_valid_batches_end_before_an_offset_that_no_index_can_name(tmp_path: Path) -> None:
    far = BASE + INT32_MAX
    segment, _ = write(tmp_path, [batch(BASE, 1), batch(far, 1)], interval=10**6)
    assert segment.intact_end(0, BASE) == segment.size
    data = batch(far + 1, 1)
    segment.append(data, [read_header(data)])
    assert segment.intact_end(0, BASE) == segment.size - len(data)


def test_the_checksum_of_a_large_batch_is_read_in_pieces(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    segment, _ = write(tmp_path, [batch(BASE, 1, size=(1 << 20) + 5), batch(BASE + 1, 1)])
    assert segment.intact_end(0, BASE) == segment.size
    assert max(length for _, length in reads) == 1 << 20
    segment.open_file().truncate(1000)
    assert segment.intact_end(0, BASE) == 0, "a file that somebody has cut"


def test_a_renamed_folder_and_final_names(tmp_path: Path) -> None:
    segment = Segment(FileCache(), str(tmp_path), BASE, suffix=".cleaned")
    segment.create()
    assert segment.path() == f"{tmp_path}/00000000000000001000.log.cleaned"
    segment.settle()
    assert segment.path(".index") == f"{tmp_path}/00000000000000001000.index"
    segment.move("/elsewhere")
    assert segment.path() == "/elsewhere/00000000000000001000.log"


def test_indexes_are_written_out_when_a_segment_is_unloaded(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, varied()[:5])
    assert isinstance(segment.offsets, SparseIndex)
    segment.unload()
    assert len(offset_entries(segment)) == 4
    segment.unload()
    assert len(offset_entries(segment)) == 4
