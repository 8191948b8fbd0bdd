"""A crash, a full disk or a damaged file costs a log only what was never whole."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.log import Log
from millstream_broker.log.recovery import OldFormatError
from millstream_kafka.batch import Record, build_batch, iter_batches, read_header, read_records
from millstream_kafka.protocol.errors import ApiError, ErrorCode

pytestmark = pytest.mark.process

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def open_log(folder: Path, *, clean: bool = False, config: LogConfig = CONFIG, **how: object) -> Log:
    return Log.open(folder, config, clean=clean, now_ms=NOW, **how)  # type: ignore[arg-type]


def fill(log: Log, count: int, *, size: int = 60, epoch: int = 0) -> None:
    for i in range(count):
        batch = build_batch([Record(b"k%d" % i, b"v" * size, NOW + i), Record(b"l", b"w", NOW + i)])
        log.append(batch, leader_epoch=epoch, now_ms=NOW)


def offsets(log: Log) -> list[int]:
    """Read everything through :meth:`Log.read`, as a consumer does."""
    found: list[int] = []
    offset = log.log_start_offset
    while (part := log.read(offset, 500, upper=log.log_end_offset, min_one=True)) is not None:
        data = part.read()
        for position, header in iter_batches(data):
            found += [r.offset for r in read_records(data[position : position + header.size])]
        offset = found[-1] + 1
    return found


@pytest.mark.parametrize("page_cache_kept", [True, False])
@pytest.mark.parametrize("rest", ["gone", "zeros", "random"])
def test_torn_write_at_every_byte_of_the_last_batch(tmp_path: Path, page_cache_kept: bool, rest: str) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 8)
    whole = log.size
    fill(log, 1)
    log.close(clean=False)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    noise = random.Random(0).randbytes(len(data))
    for torn in range(whole, len(data)):
        filler = {"gone": b"", "zeros": bytes(len(data) - torn), "random": noise[torn:]}[rest]
        path.write_bytes(data[:torn] + filler)
        log = open_log(tmp_path / "t-0", page_cache_kept=page_cache_kept)
        # A batch may happen to end in the filler's bytes.
        assert (log.log_end_offset, log.size) in [(16, whole), (18, len(data))]
        assert path.stat().st_size == log.size
        fill(log, 1)
        assert offsets(log) == list(range(log.log_end_offset))
        log.close(clean=False)


def test_a_bit_flip_anywhere_behind_the_recovery_point_is_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 6)
    log.close(clean=False)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    positions = list(iter_batches(data))
    start, header = positions[3]
    for at in range(start, start + header.size):
        if at - start < 8 or 12 <= at - start < 16:  # the CRC does not cover base offset and leader epoch
            continue
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        log = open_log(tmp_path / "t-0")
        assert (log.log_end_offset, log.size) == (6, start)
        log.close(clean=False)


@pytest.mark.parametrize("from_offset", ["nothing", "all"])
def test_a_bit_flip_anywhere_in_a_segment(
    tmp_path: Path, from_offset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches before it survive. Beyond the recovery point the log ends there, and says so; before it, nobody looks."""
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 30)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 2
    end = log.log_end_offset
    log.close(clean=False)
    path = tmp_path / "t-0" / f"{bases[1]:020d}.log"
    data = path.read_bytes()
    pristine = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    batches = list(iter_batches(data))
    chance = random.Random(3)
    for at in range(0, len(data), 19):
        start, header = next((start, each) for start, each in batches if at < start + each.size)
        if at - start < 8 or 12 <= at - start < 16:  # the CRC does not cover base offset and leader epoch
            continue
        for name, content in pristine.items():
            (path.parent / name).write_bytes(content)
        damaged = bytearray(data)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        caplog.clear()
        log = open_log(tmp_path / "t-0", recovery_point=end if from_offset == "nothing" else 0)
        if from_offset == "nothing":
            assert log.log_end_offset == end
            assert not caplog.records
        else:
            assert log.log_end_offset == header.base_offset
            assert offsets(log) == list(range(header.base_offset))
            assert f"{path}: truncated at offset {header.base_offset}, byte {start}" in caplog.text
            assert f"{bases[2]:020d}.log: dropped: it is beyond the truncation" in caplog.text
        log.close(clean=False)


def test_offsets_that_go_back_are_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 4)
    log.close(clean=False)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data + data)
    assert open_log(tmp_path / "t-0").log_end_offset == 8
    assert path.read_bytes() == data


def test_damage_in_the_middle_drops_what_follows(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 60)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    log.close(clean=False)
    path = tmp_path / "t-0" / f"{bases[1]:020d}.log"
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xee")
    log = open_log(tmp_path / "t-0")
    assert log.log_end_offset == bases[2] - 2
    assert len(log.segments) == 2
    assert offsets(log) == list(range(bases[2] - 2))
    # Only beyond the recovery point: recovery does not read what was fsynced.
    log.close(clean=False)


def test_only_the_tail_behind_the_recovery_point_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 30)
    point = log.flush()
    fill(log, 30)
    log.close(clean=False)
    damaged = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    assert open_log(tmp_path / "t-0", recovery_point=point).log_end_offset == 120
    assert open_log(tmp_path / "t-0", page_cache_kept=True).log_end_offset == 120
    assert open_log(tmp_path / "t-0", recovery_point=0).log_end_offset == 0


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", ["missing", "empty", "cut", "zeros", "random", "shuffled", "of another segment"]
)
@pytest.mark.parametrize("stop", ["clean", "kill", "new boot"])
def test_index_files_are_rebuilt(tmp_path: Path, suffix: str, damage: str, stop: str) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 100)
    log.close(clean=stop == "clean")
    noise = random.Random(1)
    paths = sorted((tmp_path / "t-0").glob("*" + suffix))
    contents = [path.read_bytes() for path in paths]
    assert len(paths) > 4
    for path, data, other in zip(paths, contents, contents[1:] + contents[:1], strict=True):
        entry = 8 if suffix == ".index" else 12
        entries = [data[i : i + entry] for i in range(0, len(data), entry)]
        noise.shuffle(entries)
        match damage:
            case "missing":
                path.unlink()
            case "empty":
                path.write_bytes(b"")
            case "cut":
                path.write_bytes(data[: len(data) // 2 + 3])
            case "zeros":
                path.write_bytes(bytes(len(data)))
            case "random":
                path.write_bytes(noise.randbytes(len(data)))
            case "shuffled" if suffix == ".index":
                path.write_bytes(b"".join(entries))
            case "shuffled":
                path.write_bytes(b"".join(sorted(entries, reverse=True)))
            case "of another segment":
                path.write_bytes(other)
    log = open_log(tmp_path / "t-0", clean=stop == "clean", page_cache_kept=stop == "kill")
    assert offsets(log) == list(range(200))
    for offset in noise.sample(range(200), 40):
        part = log.read(offset, noise.choice([1, 300, 900]), upper=200, min_one=True)
        assert part is not None
        assert next(iter_batches(part.read()))[1].base_offset == offset // 2 * 2
    for i in noise.sample(range(100), 20):
        assert log.offset_for_timestamp(NOW + i) == (NOW + i, 2 * i, 0)
    assert log.max_timestamp() == (NOW + 99, 198, 0)
    fill(log, 3)
    assert offsets(log) == list(range(206))
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_zeros_that_a_killed_kafka_leaves_behind_its_index_entries_go(tmp_path: Path, clean: bool) -> None:
    """Kafka preallocates its index files."""
    log = open_log(tmp_path / "t-0", clean=True, config=LogConfig(index_interval_bytes=0))
    for number in range(6):
        log.append(build_batch([Record(b"k", b"v", NOW + number)]), leader_epoch=0, now_ms=NOW)
    log.close()
    paths = [tmp_path / "t-0" / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex")]
    entries = [path.read_bytes() for path in paths]
    for path, content in zip(paths, entries, strict=True):
        path.write_bytes(content.ljust(960, b"\0"))
    log = open_log(tmp_path / "t-0", clean=clean, config=LogConfig(index_interval_bytes=0))
    assert offsets(log) == list(range(6))
    log.close()
    assert [path.read_bytes() for path in paths] == entries


@pytest.mark.parametrize(
    "content", [None, b"", b"garbage\n", b"0\n5\n0 0\n", b"0\n1\nx y\n", b"0\n2\n4 0\n3 9\n", b"\xff\xfe"]
)
def test_epochs_are_rebuilt_from_the_batches(tmp_path: Path, content: bytes | None) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 10, epoch=1)
    fill(log, 30, epoch=4)
    entries = list(log.epochs.entries)
    log.close()
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n2\n1 0\n4 20\n"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    log = open_log(tmp_path / "t-0", clean=True)
    assert log.epochs.entries == entries == [(1, 0), (4, 20)]
    log.close()
    assert path.read_text() == "0\n2\n1 0\n4 20\n"


def test_leftovers_of_a_deletion_go(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 60)
    log.config = replace(CONFIG, retention_bytes=2000)
    assert log.delete_old_segments(NOW) > 1
    left = list((tmp_path / "t-0").glob("*.deleted"))
    assert left
    start = log.log_start_offset
    log = open_log(tmp_path / "t-0")  # killed before the files were unlinked
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert (log.log_start_offset, log.log_end_offset) == (start, 120)


def test_a_log_lost_before_its_start_goes_on_at_its_start(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 5)
    log.close()
    shutil.rmtree(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    fill(log, 1)
    assert offsets(log) == [7, 8]


# -- a real process, killed -------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from millstream_kafka.batch import Record, build_batch
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log

log = Log.open(Path(sys.argv[1]), LogConfig(segment_bytes=1 << 20, index_interval_bytes=4096), clean=False,
               page_cache_kept=sys.argv[2] == "kept")
print("open", log.log_end_offset, flush=True)
sequence = log.log_end_offset
while True:
    records = [Record(b"%d" % (sequence + i), b"x" * 700, 1_700_000_000_000) for i in range(40)]
    batch = build_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence)
    info = log.append(batch, leader_epoch=0, now_ms=1_700_000_000_000)
    sequence += 40
    print(info.last_offset, flush=True)
"""


@pytest.mark.parametrize("page_cache", ["kept", "lost"])
def test_kill_9_in_mid_write(tmp_path: Path, page_cache: str) -> None:
    folder = tmp_path / "t-0"
    acknowledged = -1
    for round_number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), page_cache], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"open {acknowledged + 1}\n"
        for _ in range(20 + 17 * round_number):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()  # its last output
        process.wait()
        process.stdout.close()
        acknowledged = int(rest[-1]) if rest else acknowledged
        log = open_log(folder, page_cache_kept=page_cache == "kept", config=LogConfig(segment_bytes=1 << 20))
        # One batch may have been written but not acknowledged.
        assert log.log_end_offset in (acknowledged + 1, acknowledged + 41)
        acknowledged = log.log_end_offset - 1
        stored = [int(r.key or b"") for batch in log.batches_from(0) for r in read_records(batch)]
        assert stored == list(range(acknowledged + 1))
        log.close(clean=False)


# -- failing disks ----------------------------------------------------------------------------------------------


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Writes beyond ``limit`` bytes of any file fail, as on a full disk (EFBIG); the part before it is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True, config=LogConfig())
    batch = build_batch([Record(b"k", b"v" * 100, NOW)], producer_id=1, producer_epoch=0, base_sequence=0)
    log.append(batch, leader_epoch=0, now_ms=NOW)
    size = log.size
    path = tmp_path / "t-0" / f"{0:020d}.log"
    following = build_batch([Record(b"k", b"v" * 100, NOW)], producer_id=1, producer_epoch=0, base_sequence=1)
    for room in (0, 1, 50, len(following) - 1):
        with file_size_limit(size + room), pytest.raises(ApiError) as caught:
            log.append(following, leader_epoch=1, now_ms=NOW)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert str(path.parent) in caught.value.message
        assert (log.log_end_offset, log.size, path.stat().st_size) == (1, size, size)
        assert log.offline is None
        assert log.epochs.latest == 0
    with file_size_limit(size + len(following)):  # there is space again
        info = log.append(following, leader_epoch=1, now_ms=NOW)
    assert (info.first_offset, info.duplicate) == (1, False)
    assert log.append(following, leader_epoch=1, now_ms=NOW).duplicate
    log.close()
    assert offsets(open_log(tmp_path / "t-0", clean=True)) == [0, 1]


def test_no_space_for_an_index_in_a_flush(tmp_path: Path) -> None:
    """A flush writes index entries before it fsyncs. A lack of space for them is no disk failure."""
    log = open_log(tmp_path / "t-0", clean=True, config=LogConfig(index_interval_bytes=1))
    fill(log, 5)
    with file_size_limit(0), pytest.raises(ApiError) as caught:
        log.flush()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline is None
    assert log.flushed_offset == 0
    fill(log, 1)
    assert log.flush() == log.log_end_offset == 12


def test_no_space_for_a_new_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 12)
    end, size = log.log_end_offset, log.size
    with file_size_limit(0):
        for _ in range(3):
            with pytest.raises(ApiError):
                log.append(build_batch([Record(b"k", b"v" * 1500, NOW)]), leader_epoch=0, now_ms=NOW)
    assert (log.log_end_offset, log.size) == (end, size)
    log.append(build_batch([Record(b"k", b"v" * 1500, NOW)]), leader_epoch=0, now_ms=NOW)
    assert offsets(log) == list(range(end + 1))
    log.close()
    assert offsets(open_log(tmp_path / "t-0")) == list(range(end + 1))


def test_a_log_that_cannot_be_repaired_goes_offline(tmp_path: Path) -> None:
    """The file can grow but not shrink, so the remains of a failed write cannot be cut off.

    Nobody may say then that the log has none of the records.
    """
    import fcntl

    log = open_log(tmp_path / "t-0", clean=True)
    fill(log, 3)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    size = log.size
    log.close(clean=False)
    memory = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
    os.write(memory, path.read_bytes())
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    path.unlink()
    path.symlink_to(f"/proc/self/fd/{memory}")
    with file_size_limit(size + 10), pytest.raises(ApiError) as caught:
        fill(log, 1)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert log.offline is not None
    with pytest.raises(ApiError) as caught:
        fill(log, 1)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with pytest.raises(ApiError):
        log.flush()
    log.close()
    left = os.pread(memory, 10_000, 0)
    os.close(memory)
    path.unlink()
    path.write_bytes(left)
    log = open_log(tmp_path / "t-0", page_cache_kept=True)  # a restart repairs it
    assert (log.log_end_offset, log.size) == (6, size)


# -- bounded resources ------------------------------------------------------------------------------------------


def open_files(folder: Path) -> int:
    """How many files in the folder this process has open, deleted ones included."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, like that of the listing
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
    return count


def test_open_files_are_bounded(tmp_path: Path) -> None:
    files = FileCache(6)
    logs = [open_log(tmp_path / f"t-{i}", clean=True, files=files) for i in range(20)]
    for log in logs:
        fill(log, 40)
        assert open_files(tmp_path) <= 6
    slices = [log.read(0, 300, upper=10, min_one=True) for log in logs]
    assert open_files(tmp_path) <= 6 + len(logs)
    for log in logs:
        log.delete()
    # Files that are deleted and evicted can still be sent.
    for part in slices:
        assert part is not None
        assert read_header(part.read()).base_offset == 0
    del part, slices
    assert open_files(tmp_path) <= 6


def test_flush_beside_appends(tmp_path: Path) -> None:
    """A thread fsyncs while the loop appends; the reported offset is on disk, and never beyond the end."""
    import threading

    log = open_log(tmp_path / "t-0", clean=True, files=FileCache(2))  # each keeps closing the other's files
    errors: list[BaseException] = []
    flushes = 0
    done = threading.Event()

    def flush() -> None:
        nonlocal flushes
        try:
            while not done.is_set():
                flushed = log.flush()
                flushes += 1
                assert flushed <= log.log_end_offset
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    while flushes < 300 and not errors:
        fill(log, 5)
        if log.size > 20_000:
            log.config = replace(CONFIG, retention_bytes=5000)
            log.delete_old_segments(NOW)
            log.remove_deleted_files()
    done.set()
    thread.join()
    assert not errors
    assert log.flush() == log.log_end_offset
    start, end = log.log_start_offset, log.log_end_offset
    log.close(clean=False)
    log = open_log(tmp_path / "t-0", recovery_point=end)
    assert offsets(log) == list(range(start, end))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("behind", [False, True])
def test_old_message_formats_are_named_and_left_as_they_are(
    tmp_path: Path, magic: int, clean: bool, behind: bool
) -> None:
    folder = tmp_path / "t-0"
    log = Log.open(folder, LogConfig(), clean=True, now_ms=NOW)
    if behind:  # as after message.format.version was lowered again
        log.append(build_batch([Record(b"k", b"v", NOW)]), leader_epoch=0, now_ms=NOW)
    log.close()
    message = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"")
    message += struct.pack(">i1si1s", 1, b"k", 1, b"v")
    path = folder / f"{0:020d}.log"
    with path.open("ab") as file:
        file.write(struct.pack(">qiI", int(behind), len(message) + 4, zlib.crc32(message)) + message)
    before = path.read_bytes()
    with pytest.raises(OldFormatError, match=f"t-0/0{{20}}.log: message format {magic} at byte"):
        Log.open(folder, LogConfig(), clean=clean, now_ms=NOW)
    assert path.read_bytes() == before
