"""Starts moved by DeleteRecords: durable after `LogDir.commit_starts`, one write for all logs of a directory."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import pytest

from millstream_broker.log import checkpoints, directory
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDir
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness import log_dirs
from millstream_harness.log_dirs import kill, lose_power, send

pytestmark = pytest.mark.usefixtures("no_fsync")

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
SMALL = LogConfig(segment_bytes=200)
"""Two records in a segment."""


def make(manager: LogManager, topic: str, topic_id: uuid.UUID) -> tuple[LogDir, Log]:
    log = manager.get_or_create(topic, 0, topic_id)
    send(log, 20)
    return manager.partitions()[topic, 0], log


def start_of(folder: Path, topic: str = "a") -> int:
    manager = log_dirs.start(folder)
    log = manager.get(topic, 0)
    assert log is not None
    kill(manager)
    return log.log_start_offset


class Disk:
    """Writes of checkpoints of log starts: counted, and refused while there is an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[int] = []
        self.writes = 0
        write = checkpoints.store

        def store(path: str, entries: checkpoints.Identified, *, sync: bool = True) -> None:
            if path.endswith(checkpoints.LOG_START_OFFSETS):
                if self.errors:
                    raise OSError(self.errors.pop(0), "refused", path)
                self.writes += 1
                assert sync
            write(path, entries, sync=sync)

        monkeypatch.setattr(checkpoints, "store", store)


@pytest.mark.parametrize("is_rebooted", [True, False])
@pytest.mark.parametrize("config", [LogConfig(), SMALL])
def test_a_commit_outlives_the_process(tmp_path: Path, config: LogConfig, is_rebooted: bool) -> None:
    manager = log_dirs.start(tmp_path, config=config)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    assert (log.log_start_offset, log.durable_start) == (15, 0)
    home.commit_starts()
    assert log.durable_start == 15
    kill(manager)
    if is_rebooted:
        lose_power(tmp_path)
    assert start_of(tmp_path) == 15


def test_all_logs_of_a_directory_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = log_dirs.start(tmp_path)
    (home, a), (_, b) = make(manager, "a", A), make(manager, "b", B)
    a.delete_records_before(5)
    b.delete_records_before(6)
    disk = Disk(monkeypatch)
    home.commit_starts()
    assert (a.durable_start, b.durable_start, disk.writes) == (5, 6, 1)
    a.delete_records_before(7)
    home.commit_starts()
    kill(manager)
    assert [start_of(tmp_path, one) for one in "ab"] == [7, 6], "each write has all of them"


def test_removed_segments_are_durable_before_the_start_leaves_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start at a segment's beginning is in no checkpoint: the removal of the segments before it says it all."""
    synced: list[str] = []
    manager = log_dirs.start(tmp_path, config=SMALL)
    home, log = make(manager, "a", A)
    monkeypatch.setattr("millstream_broker.log.segments.fsync_directory", synced.append)
    boundary = log.segments[3].base_offset
    log.delete_records_before(boundary)
    home.commit_starts()
    assert (log.durable_start, log.moved_start(), synced) == (boundary, None, [str(tmp_path / "a-0")])
    log.delete_records_before(boundary + 1)
    home.commit_starts()
    assert (log.durable_start, log.moved_start(), len(synced)) == (boundary + 1, boundary + 1, 1)


def test_a_full_disk_gets_the_space_of_the_removed_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = log_dirs.start(tmp_path, config=SMALL)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    disk = Disk(monkeypatch)
    disk.errors = [errno.ENOSPC]
    home.commit_starts()
    assert (log.durable_start, disk.writes) == (15, 1)
    assert not [*(tmp_path / "a-0").glob("*.deleted")]


def test_a_start_that_was_not_written_is_written_with_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = log_dirs.start(tmp_path)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    disk = Disk(monkeypatch)
    disk.errors = [errno.ENOSPC, errno.ENOSPC]
    with pytest.raises(OSError, match="refused"):
        home.commit_starts()
    assert log.durable_start == 0
    manager.checkpoint()
    assert log.durable_start == 15
    kill(manager)
    assert start_of(tmp_path) == 15


def test_a_broken_disk_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = log_dirs.start(tmp_path)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    disk = Disk(monkeypatch)
    disk.errors = [errno.EIO]
    with pytest.raises(OSError, match="refused"):
        home.commit_starts()
    assert (log.durable_start, disk.writes) == (0, 0)


def test_a_log_that_is_deleted_meanwhile_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = log_dirs.start(tmp_path, config=SMALL)
    (home, a), (_, b) = make(manager, "a", A), make(manager, "b", B)
    a.delete_records_before(a.segments[3].base_offset)
    b.delete_records_before(6)
    sync = directory.Log.sync_removals

    def sync_removals(log: Log) -> None:
        if log is a:
            path = a.segments.path
            manager.delete("a", 0)
            a.segments.path = path  # as the thread may have read it before the folder was renamed
        sync(log)

    monkeypatch.setattr(Log, "sync_removals", sync_removals)
    home.commit_starts()
    assert b.durable_start == 6
    assert home.failure is None
    assert not home.moved


def test_a_new_topic_of_the_name_has_its_own_start(tmp_path: Path) -> None:
    manager = log_dirs.start(tmp_path)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    home.commit_starts()
    manager.delete("a", 0)
    _, new = make(manager, "a", B)
    kill(manager)
    assert start_of(tmp_path) == new.log_start_offset == 0


def test_a_truncation_takes_the_durable_start_along(tmp_path: Path) -> None:
    manager = log_dirs.start(tmp_path)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    home.commit_starts()
    log.truncate_to(10, now_ms=0)
    assert (log.log_start_offset, log.durable_start) == (10, 10)
    home.commit_starts()
    kill(manager)
    assert start_of(tmp_path) == 10


def test_a_start_that_was_moved_down_meanwhile_is_not_durable_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = log_dirs.start(tmp_path)
    home, log = make(manager, "a", A)
    log.delete_records_before(15)
    store = checkpoints.store

    def truncated_meanwhile(path: str, entries: checkpoints.Identified, *, sync: bool = True) -> None:
        store(path, entries, sync=sync)
        log.ends_at(10, log.producers)

    monkeypatch.setattr(checkpoints, "store", truncated_meanwhile)
    home.commit_starts()
    assert log.durable_start == 10


def test_a_restart_of_the_log_elsewhere_is_durable(tmp_path: Path) -> None:
    manager = log_dirs.start(tmp_path)
    _, log = make(manager, "a", A)
    log.truncate_fully_and_start_at(50, now_ms=0)
    assert log.durable_start == 50
    assert os.listdir(tmp_path / "a-0").count("00000000000000000050.log") == 1
