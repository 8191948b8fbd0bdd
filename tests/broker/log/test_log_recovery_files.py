"""Recovery of each file in a log's folder: kept, removed, cut or rewritten."""

from __future__ import annotations

import logging
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.log import recovery
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.log import Log
from millstream_broker.log.recovery import OldFormatError
from millstream_kafka.batch import HEADER_SIZE, Record, build_batch, read_header

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def open_log(folder: Path, *, clean: bool = True, config: LogConfig = CONFIG, **how: object) -> Log:
    return Log.open(folder, config, clean=clean, now_ms=NOW, **how)  # type: ignore[arg-type]


def send(
    log: Log, count: int, *, epoch: int = 0, timestamp: Callable[[int], int] = lambda i: NOW + i
) -> None:
    """Batches of one record, with rising timestamps."""
    for i in range(count):
        log.append(build_batch([Record(b"k", b"v" * 30, timestamp(i))]), leader_epoch=epoch, now_ms=NOW)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def named(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def closed(tmp_path: Path) -> tuple[Path, list[int]]:
    """The folder of a closed log of 40 records, and its segments' base offsets."""
    log = open_log(tmp_path / "t-0")
    send(log, 40)
    log.close()
    assert len(log.segments) > 3
    return tmp_path / "t-0", bases(log)


# -- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffixes", [[".index"], [".timeindex"], [".index", ".timeindex"]])
def test_indexes_without_a_log_go(tmp_path: Path, suffixes: list[str]) -> None:
    for suffix in suffixes:
        (tmp_path / named(7, suffix)).write_bytes(bytes(24))
    recovery.tidy(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    strange = [
        "123.log",
        "7.index",
        "a" * 20 + ".log",
        "a" * 20 + ".index",
        "notes.txt",
        named(5, ".txnindex"),
    ]
    for name in [*strange, named(5, ".log"), named(5, ".log.tmp"), named(6, ".log.swap")]:
        (tmp_path / name).write_bytes(b"")
    folder = recovery.tidy(str(tmp_path))
    assert (folder.logs, folder.indexes, folder.snapshots) == ({5: 0, 6: 0}, {}, [])
    assert {path.name for path in tmp_path.iterdir()} == {*strange, named(5, ".log"), named(6, ".log")}


def test_what_is_there_is_told_with_its_size(tmp_path: Path) -> None:
    for suffix, size in (
        (".log", 100),
        (".index", 16),
        (".timeindex", 24),
        (".txnindex", 34),
        (".snapshot", 3),
    ):
        (tmp_path / named(5, suffix)).write_bytes(bytes(size))
    folder = recovery.tidy(str(tmp_path))
    assert folder == recovery.Folder({5: 100}, {5: 16}, {5: 24}, {5: 34}, [5])


# -- compacted segments that had not replaced their sources -------------------------------------------------------


def swapped(folder: Path, *offsets: int) -> bytes:
    """A compacted segment of batches with these offsets."""
    data = b"".join(build_batch([Record(b"k", b"v", NOW)], base_offset=offset) for offset in offsets)
    (folder / named(offsets[0], ".log.swap")).write_bytes(data)
    return data


@pytest.mark.parametrize(("last", "left"), [(12, [10, 14, 15]), (14, [10, 15]), (15, [10])])
def test_a_compacted_segment_replaces_those_of_its_offsets(
    tmp_path: Path, last: int, left: list[int]
) -> None:
    """Its sources are the segments 10 and 12, or also 14, or also 15."""
    for base in (9, 10, 12, 14, 15):
        for suffix in (".log", ".index", ".timeindex"):
            (tmp_path / named(base, suffix)).write_bytes(b"")
    data = swapped(tmp_path, 10, last)
    recovery.tidy(str(tmp_path))
    indexed = [base for base in [9, *left] if base != 10]
    assert {path.name for path in tmp_path.iterdir()} == {
        named(10, ".log"),
        *(named(base, suffix) for base in indexed for suffix in (".log", ".index", ".timeindex")),
    }
    assert (tmp_path / named(10, ".log")).read_bytes() == data


def test_a_compacted_segment_does_not_get_the_indexes_of_another(tmp_path: Path) -> None:
    """A crash between the renaming of a segment's log and that of its indexes leaves these indexes."""
    folder = tmp_path / "t-0"
    log = open_log(folder, config=LogConfig(segment_bytes=1000, index_interval_bytes=1))
    send(log, 25)
    log.close()
    first, second, third, *_ = bases(log)
    data = (folder / named(first, ".log")).read_bytes() + (folder / named(second, ".log")).read_bytes()
    (folder / named(first, ".log.swap")).write_bytes(data)
    (folder / named(first, ".log")).rename(folder / named(first, ".log.deleted"))
    log = open_log(folder)
    assert bases(log)[:2] == [first, third]
    assert log.segments[0].max_timestamp == NOW + third - 1
    log.close()


# -- indexes ------------------------------------------------------------------------------------------------------


class Opened(FileCache):
    """Records which files are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: set[str] = set()

    def get(self, path: str, *, create: bool = False) -> OpenFile:
        self.paths.add(Path(path).name)
        return super().get(path, create=create)


def test_a_clean_start_reads_closed_segments_not_at_all(closed: tuple[Path, list[int]]) -> None:
    folder, starts = closed
    files = Opened()
    open_log(folder, files=files)
    assert {name[:20] for name in files.paths} <= {named(0, ""), named(starts[-1], "")}
    assert named(0, ".index") not in files.paths, "its first bytes are looked at, for an old format"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("size", [None, -1], ids=["missing", "cut within an entry"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_index_that_cannot_be_whole_is_written_anew(
    closed: tuple[Path, list[int]], suffix: str, size: int | None, clean: bool
) -> None:
    folder, starts = closed
    before = contents(folder)
    path = folder / named(starts[1], suffix)
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    open_log(folder, clean=clean, recovery_point=40).close()
    assert contents(folder) == before


def test_a_missing_time_index_is_written_from_the_first_batch_on(tmp_path: Path) -> None:
    """Even for the active segment, whose first batch has the largest timestamp."""
    config = LogConfig(index_interval_bytes=1)
    log = open_log(tmp_path, config=config)
    send(log, 4, timestamp=lambda i: NOW - i)
    log.close()
    (tmp_path / named(0, ".timeindex")).unlink()
    log = open_log(tmp_path, clean=False, config=config, page_cache_kept=True)
    assert log.max_timestamp() == (NOW, 0, 0)


def test_recovered_segments_tell_their_largest_timestamp(tmp_path: Path) -> None:
    """A closed segment's time index ends with it, wherever the process was killed."""
    log = open_log(tmp_path)
    send(log, 40)
    starts = bases(log)
    log.close(clean=False)
    open_log(tmp_path, clean=False).close()
    log = open_log(tmp_path)
    assert [segment.max_timestamp for segment in log.segments][:-1] == [NOW + base - 1 for base in starts[1:]]


# -- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"recovery_point": 9}, {"page_cache_kept": True}], ids=["fsynced", "kept"])
def test_nobody_reads_what_is_on_the_disk_for_sure(tmp_path: Path, how: dict[str, int]) -> None:
    """Not even in the segment whose tail is read, unless its indexes are missing."""
    log = open_log(tmp_path)
    send(log, 10)
    assert len(log.segments) == 1
    log.close()
    path = tmp_path / named(0, ".log")
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 1] ^= 1
    path.write_bytes(data)
    open_log(tmp_path, clean=False, **how).close()
    assert path.read_bytes() == data
    (tmp_path / named(0, ".index")).unlink()
    assert open_log(tmp_path, clean=False, **how).log_end_offset == 0


def test_a_segment_begins_where_its_name_says(tmp_path: Path) -> None:
    """Offsets before that belong to the previous segment."""
    log = open_log(tmp_path)
    send(log, 12)
    second = bases(log)[1]
    log.close(clean=False)
    path = tmp_path / named(second, ".log")
    data = path.read_bytes()
    path.write_bytes(struct.pack(">q", second - 1) + data[8:])
    log = open_log(tmp_path, clean=False)
    assert (log.log_end_offset, path.stat().st_size) == (second, 0)
    log.close(clean=False)


@pytest.mark.parametrize("torn", ["torn", ""])
def test_a_stop_was_not_as_clean_as_it_claims(
    closed: tuple[Path, list[int]], torn: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, starts = closed
    path = folder / named(starts[-1], ".log")
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(torn.encode())
    with caplog.at_level(logging.WARNING):
        log = open_log(folder)
    assert (log.log_end_offset, path.stat().st_size) == (40, size)
    expected = [f"{path}: truncated at offset 40, byte {size}: no valid batch follows"]
    assert caplog.messages == (expected if torn else [])


def test_a_log_that_starts_at_its_end_stays_as_it_is(closed: tuple[Path, list[int]]) -> None:
    folder, starts = closed
    log = open_log(folder, log_start_offset=40)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (40, 40, starts)


def test_a_log_that_ends_before_its_start_goes_on_there_without_the_rest(
    closed: tuple[Path, list[int]],
) -> None:
    folder, _ = closed
    log = open_log(folder, log_start_offset=41)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (41, 41, [41])


# -- epochs -------------------------------------------------------------------------------------------------------


def test_epochs_behind_the_recovery_point_are_read_from_the_batches(tmp_path: Path) -> None:
    """After a loss of power the file may be older than the log."""
    log = open_log(tmp_path)
    send(log, 1, epoch=1)
    older = (tmp_path / "leader-epoch-checkpoint").read_bytes()
    send(log, 9, epoch=2)
    log.close(clean=False)
    (tmp_path / "leader-epoch-checkpoint").write_bytes(older)
    log = open_log(tmp_path, clean=False, recovery_point=1)
    assert log.epochs.entries == [(1, 0), (2, 1)]
    log.close(clean=False)


def test_epochs_before_the_recovery_point_are_those_of_the_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 10, epoch=3)
    log.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n0\n")
    assert open_log(tmp_path).epochs.entries == []
    assert open_log(tmp_path, clean=False, page_cache_kept=True).epochs.entries == []
    assert open_log(tmp_path, clean=False, recovery_point=9).epochs.entries == [(3, 9)]


def test_without_the_file_all_epochs_are_read_from_the_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 1, epoch=1)
    send(log, 1, epoch=2)
    log.close()
    (tmp_path / "leader-epoch-checkpoint").unlink()
    assert open_log(tmp_path).epochs.entries == [(1, 0), (2, 1)]


# -- producers ----------------------------------------------------------------------------------------------------


def produce(log: Log, producer_id: int, sequence: int = 0) -> None:
    batch = build_batch(
        [Record(b"k", b"v" * 30, NOW)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    log.append(batch, leader_epoch=0, now_ms=NOW)


def known_producers(folder: Path, **how: object) -> set[int]:
    log = open_log(folder, **how)  # type: ignore[arg-type]
    log.close(clean=False)
    return set(log.producers.by_id)


def test_every_producer_of_the_batches_is_known_after_a_kill(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for producer_id in (0, 1, 2):
        produce(log, producer_id)
    send(log, 1)
    log.close(clean=False)
    assert known_producers(tmp_path, clean=False) == {0, 1, 2}


def test_a_snapshot_at_the_end_has_producers_without_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    produce(log, 7)
    send(log, 20)
    log.delete_records_before(20)
    assert log.segments.first_offset > 1
    log.close()
    assert known_producers(tmp_path) == {7}


def test_a_snapshot_of_the_first_segment_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    produce(log, 7)
    send(log, 20)
    log.delete_records_before(20)
    first = log.segments.first_offset
    log.close()
    for path in tmp_path.glob("*.snapshot"):
        if path.name != named(first, ".snapshot"):
            path.unlink()
    assert known_producers(tmp_path) == {7}


def test_a_producer_that_was_forgotten_stays_forgotten(tmp_path: Path) -> None:
    """Its batches are still there, but before the snapshot."""
    log = open_log(tmp_path)
    produce(log, 7)
    log.expire_producers(NOW + 10**12)
    log.roll(now_ms=NOW)
    produce(log, 8)
    log.close(clean=False)
    assert known_producers(tmp_path, clean=False) == {8}
    open_log(tmp_path).close()
    assert known_producers(tmp_path) == {8}


def test_snapshots_that_nothing_needs_go(closed: tuple[Path, list[int]]) -> None:
    """Recovery keeps the newest valid snapshot, and those at the start of a segment: the log may be cut there."""
    folder, starts = closed
    valid = folder / named(40, ".snapshot")
    strays = (1, starts[1] + 1, 39, 41, 50)
    for offset in strays:
        shutil.copy(valid, folder / named(offset, ".snapshot"))
    valid.write_bytes(b"garbage")
    (folder / named(starts[-1], ".snapshot")).write_bytes(b"garbage")
    assert [int(path.stem) for path in sorted(folder.glob("*.snapshot"))] == sorted(
        {40, *starts[1:], *strays}
    )
    open_log(folder).close(clean=False)
    assert [int(path.stem) for path in sorted(folder.glob("*.snapshot"))] == [*starts[1:], 39]


# -- message formats before 2 -----------------------------------------------------------------------------------


def old_message(magic: int, offset: int, *, longer: int = 0) -> bytes:
    """A message of format 0 or 1 whose size field is ``longer`` too large."""
    message = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"")
    message += struct.pack(">i1si1s", 1, b"k", 1, b"v")
    return struct.pack(">qiI", offset, len(message) + 4 + longer, zlib.crc32(message)) + message


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_format_in_the_first_of_many_segments_is_named(
    closed: tuple[Path, list[int]], magic: int
) -> None:
    folder, _ = closed
    (folder / named(0, ".log")).write_bytes(old_message(magic, 0) + old_message(magic, 1))
    before = contents(folder)
    with pytest.raises(OldFormatError, match=f"0.log: message format {magic} at byte 0"):
        open_log(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("count", [0, 1])
def test_a_message_of_an_old_format_that_is_not_whole_is_a_torn_tail(
    tmp_path: Path, magic: int, count: int
) -> None:
    log = open_log(tmp_path)
    send(log, count)
    log.close(clean=False)
    path = tmp_path / named(0, ".log")
    before = path.read_bytes()
    path.write_bytes(before + old_message(magic, count, longer=1))
    log = open_log(tmp_path, clean=False)
    assert (log.log_end_offset, path.read_bytes()) == (count, before)
    log.close(clean=False)


def test_a_batch_is_never_taken_for_an_old_message(tmp_path: Path) -> None:
    """Even if its leader epoch, which lies where a message has its CRC, equals that CRC."""
    for i in range(100):
        batch = build_batch([Record(b"k%d" % i, b"v", NOW)])
        epoch = zlib.crc32(batch[16:])
        if epoch < 2**31:
            break
    log = open_log(tmp_path)
    log.append(batch, leader_epoch=epoch, now_ms=NOW)
    assert read_header(next(log.batches_from(0))).partition_leader_epoch == epoch
    log.close()
    assert open_log(tmp_path).log_end_offset == 1
