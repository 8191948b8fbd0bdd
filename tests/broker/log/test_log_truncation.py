"""Truncation: checkpoints meanwhile, and what a failure half-way leaves."""

from __future__ import annotations

import errno
import gc
import os
import resource
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream_broker.log import checkpoints
from millstream_broker.log.config import LogConfig
from millstream_broker.log.index import OFFSET_ENTRY, TIME_ENTRY, read_all
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness import log_dirs
from millstream_kafka.batch import Record, build_batch, read_header
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
TOPIC_ID = uuid.UUID("c5db41bf-48d3-41db-be1b-a6a230589398")


def start(folder: Path) -> LogManager:
    return log_dirs.start(folder, config=LogConfig(segment_bytes=300, cleanup_policy="compact"))


def send(log: Log, count: int, epoch: int = 0) -> None:
    for _ in range(count):
        log.append(
            build_batch([Record(b"k", b"%d" % log.log_end_offset, NOW)]), leader_epoch=epoch, now_ms=NOW
        )


def on_disk(folder: Path, name: str) -> int:
    return checkpoints.load(str(folder / name)).offsets["t", 0]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    manager = start(tmp_path)
    yield manager
    manager.unlock()


@pytest.fixture
def log(manager: LogManager) -> Log:
    """A log of ten records: flushed, compacted and checkpointed."""
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log, 10)
    log.flush()
    log.first_dirty_offset = 8
    manager.checkpoint()
    return log


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process cannot open another file."""
    gc.collect()  # may close files of earlier tests
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def before_files_change(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Calls to make, once each, before the next file is renamed or cut."""
    calls: list[Callable[[], None]] = []
    for name in ("rename", "ftruncate"):
        act = getattr(os, name)

        def acts(*args: object, act: Callable[..., None] = act) -> None:
            while calls:
                calls.pop()()
            act(*args)

        monkeypatch.setattr(os, name, acts)
    return calls


@pytest.mark.parametrize("offset", [5, 6, 0])
def test_checkpoints_claim_nothing_of_what_a_truncation_removes(
    tmp_path: Path, log: Log, before_files_change: list[Callable[[], None]], offset: int
) -> None:
    """Otherwise, after a crash, they would cover other records there, which nobody flushed or compacted."""
    seen = []
    before_files_change.append(
        lambda: seen.extend(
            on_disk(tmp_path, name) for name in (checkpoints.RECOVERY_POINTS, checkpoints.CLEANER_OFFSETS)
        )
    )
    log.truncate_to(offset, now_ms=NOW)
    assert seen == [offset, offset]


def test_a_checkpoint_during_a_truncation_claims_nothing_of_what_goes(
    tmp_path: Path, manager: LogManager, log: Log, before_files_change: list[Callable[[], None]]
) -> None:
    log.truncate_to(9, now_ms=NOW)
    send(log, 5)
    log.flush()

    def claim(offset: int) -> None:
        log.claim_nothing_behind(offset)
        manager.checkpoint()
        assert on_disk(tmp_path, checkpoints.RECOVERY_POINTS) == offset

    claim(9)
    log.release_claims()
    manager.checkpoint()
    assert on_disk(tmp_path, checkpoints.RECOVERY_POINTS) == 14


def test_a_truncation_behind_all_claims_writes_no_checkpoint(tmp_path: Path, log: Log) -> None:
    send(log, 10)
    written = (tmp_path / f"{checkpoints.RECOVERY_POINTS}{checkpoints.BY_ID}").stat().st_ino
    log.truncate_to(10, now_ms=NOW)
    assert (tmp_path / f"{checkpoints.RECOVERY_POINTS}{checkpoints.BY_ID}").stat().st_ino == written


def test_records_behind_a_truncation_are_verified_after_a_loss_of_power(tmp_path: Path, log: Log) -> None:
    log.truncate_to(5, now_ms=NOW)
    send(log, 5, epoch=1)
    segment = log.segments[log.segments.index_of(7)]
    position, header = next(segment.headers_from(7))
    path = Path(segment.path())
    data = bytearray(path.read_bytes())
    data[position + header.size - 1] ^= 1  # the last record's last byte
    path.write_bytes(data)
    copy = tmp_path / "copy"
    copy.mkdir()
    (tmp_path / "t-0").rename(copy / "t-0")
    for each in tmp_path.glob("*checkpoint*"):
        each.rename(copy / each.name)
    after = start(copy)
    again = after.get("t", 0)
    assert again is not None
    assert again.log_end_offset == 7
    after.close()


@pytest.mark.parametrize(
    "act",
    [lambda log: log.truncate_to(0, now_ms=NOW), lambda log: log.truncate_fully_and_start_at(50, now_ms=NOW)],
)
def test_without_files_to_open_the_log_stays_as_it_is(
    tmp_path: Path, manager: LogManager, log: Log, act: Callable[[Log], None]
) -> None:
    """A follower retries; meanwhile checkpoints, metrics and the stop need a log with segments."""
    log.truncate_to(10, now_ms=NOW)
    names = sorted(os.listdir(tmp_path / "t-0"))
    with no_more_files(), pytest.raises(ApiError, match="Too many open files") as raised:
        act(log)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.offline, log.log_start_offset, log.log_end_offset) == (None, 0, 10)
    assert sorted(os.listdir(tmp_path / "t-0")) == names
    assert log.size == sum(segment.size for segment in log.segments)
    manager.checkpoint()
    act(log)
    send(log, 1)
    assert log.size > 0
    manager.close()


@pytest.mark.parametrize("offset", [0, 5])
def test_a_truncation_that_fails_half_way_takes_the_log_offline(
    tmp_path: Path, manager: LogManager, log: Log, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Nothing may be appended to a log that is half cut. Reopening repairs it."""
    full = OSError(errno.ENOSPC, "No space left on device")
    rename, renamed = os.rename, []

    def fails(source: str, target: str) -> None:
        if len(renamed) == 2:
            raise full
        renamed.append(source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails)
        with pytest.raises(ApiError, match="No space left") as raised:
            log.truncate_to(offset, now_ms=NOW)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline is full
    with pytest.raises(ApiError, match="No space left"):
        send(log, 1)
    assert manager.dirs[0].failure is None
    manager.checkpoint()
    manager.close()
    after = start(tmp_path)
    again = after.get("t", 0)
    assert again is not None
    assert offset <= again.log_end_offset <= 10
    again.truncate_to(offset, now_ms=NOW)
    send(again, 3)
    assert again.log_end_offset == offset + 3
    after.close()


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("last", [False, True])
def test_a_kill_during_a_truncation_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """Whatever file is renamed last, the log has every record up to its end."""
    rename, moment = os.rename, 0
    is_done = False
    while not is_done:
        moment += 1
        renamed = 0

        def killing(source: str, target: str, at: int = moment) -> None:
            nonlocal renamed
            renamed += target.endswith(".deleted")
            if renamed == at:
                if last:
                    rename(source, target)
                raise Killed
            rename(source, target)

        folder = tmp_path / str(moment)
        manager = start(folder)
        log = manager.get_or_create("t", 0, TOPIC_ID)
        send(log, 20)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", killing)
            try:
                log.truncate_to(5, now_ms=NOW)
                is_done = True
            except Killed:
                pass
        log_dirs.kill(manager)
        manager = start(folder)
        again = manager.get("t", 0)
        assert again is not None
        offsets = [read_header(data).base_offset for data in again.batches_from(0)]
        assert offsets == list(range(again.log_end_offset))
        assert len(offsets) >= 5
        log_dirs.kill(manager)
    assert moment > 6


def test_a_deleted_log_that_is_cut_is_deleted(manager: LogManager, log: Log) -> None:
    manager.delete("t", 0)
    manager.remove_deleted()
    with pytest.raises(ApiError) as raised:
        log.truncate_to(5, now_ms=NOW)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert log.is_deleted
    assert manager.dirs[0].failure is None


def test_a_truncation_at_the_end_cuts_nothing(log: Log) -> None:
    """So a compaction can continue."""
    before = log.segments.truncations
    log.truncate_to(10, now_ms=NOW)
    assert (log.segments.truncations, log.log_end_offset) == (before, 10)


def test_a_cut_before_the_first_segment_begins_another_one_there(manager: LogManager, log: Log) -> None:
    """Retention has removed the segments in between; the leader's log is shorter."""
    log.delete_records_before(6)
    assert log.segments.first_offset > 2
    log.truncate_to(2, now_ms=NOW)
    assert [segment.base_offset for segment in log.segments] == [2]
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    send(log, 3, epoch=1)
    assert [read_header(data).base_offset for data in log.batches_from(2)] == [2, 3, 4]


def test_indexes_name_nothing_that_was_cut(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(index_interval_bytes=1), clean=True, now_ms=NOW)
    send(log, 10)
    log.truncate_to(5, now_ms=NOW)
    log.segments.active.finish()
    path = Path(log.segments.active.path())
    for suffix, layout in ((".index", OFFSET_ENTRY), (".timeindex", TIME_ENTRY)):
        entries = read_all(str(path.with_suffix(suffix)), layout)
        assert entries
        assert all(min(entry) < 5 for entry in entries)
    log.close()


def test_a_log_started_anew_has_no_epochs(log: Log) -> None:
    assert log.epochs.entries == [(0, 0)]
    log.truncate_fully_and_start_at(50, now_ms=NOW)
    assert log.epochs.entries == []


def test_a_batch_from_before_the_end_of_an_empty_log_starts_it_anew(log: Log) -> None:
    def starts_within(offset: int) -> bool:
        return log.starts_within(memoryview(build_batch([Record(None, b"x", 0)], base_offset=offset)))

    log.truncate_fully_and_start_at(5, now_ms=0)
    assert [starts_within(offset) for offset in (-1, 0, 4, 5, 6)] == [True, True, True, False, False]
    send(log, 1)
    assert not starts_within(4), "it is not empty"
