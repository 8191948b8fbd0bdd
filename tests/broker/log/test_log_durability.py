"""How far a log is durable: what a flush fsyncs, skips and reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream_broker.log import durability
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError

NOW = 1_700_000_000_000
PORTION = durability._PORTION


def opened(tmp_path: Path) -> Log:
    return Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)


def send(log: Log) -> None:
    log.append(build_batch([Record(b"k", b"v", NOW)]), leader_epoch=0, now_ms=NOW)


def fill(log: Log, segments: int) -> None:
    """Create this many closed segments of one record, and an empty active one."""
    for _ in range(segments):
        send(log)
        log.roll(now_ms=NOW)


def names(fsynced: list[str]) -> list[str]:
    return [os.path.basename(path) for path in fsynced]


def files(*offsets: int) -> list[str]:
    return [f"{offset:020d}{suffix}" for offset in offsets for suffix in (".log", ".index", ".timeindex")]


def test_a_flush_fsyncs_what_is_new_and_the_folder_once(tmp_path: Path, fsynced: list[str]) -> None:
    log = opened(tmp_path)
    assert (log.flush(), fsynced) == (0, [])
    send(log)
    assert log.flush() == 1
    assert names(fsynced) == [*files(0), "t-0", "leader-epoch-checkpoint", "t-0"]
    del fsynced[:]
    assert (log.flush(), fsynced) == (1, [])
    send(log)
    assert log.flush() == 2
    assert names(fsynced) == files(0), "its names are on the disk already"
    log.roll(now_ms=NOW)
    send(log)
    del fsynced[:]
    assert log.flush() == 3
    assert names(fsynced) == [*files(2), "t-0"]


def test_a_flush_goes_never_back(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, 3)
    log.durability.flush(2)
    assert log.flushed_offset == 2
    log.durability.flush(1)
    assert log.flushed_offset == 2


def test_closed_segments_are_fsynced_in_portions(tmp_path: Path, fsynced: list[str]) -> None:
    log = opened(tmp_path)
    assert (log.flush_closed(), fsynced) == (False, [])
    fill(log, 2 * PORTION)
    del fsynced[:]
    assert log.flush_closed(), "there are more"
    assert log.flushed_offset == PORTION
    snapshot = f"{PORTION:020d}.snapshot"
    assert names(fsynced)[:2] == [snapshot, "t-0"]
    logs = [name for name in names(fsynced) if name.endswith(".log")]
    assert logs == [f"{offset:020d}.log" for offset in range(PORTION)]
    assert not log.flush_closed(), "the active one is not closed"
    assert log.flushed_offset == 2 * PORTION
    del fsynced[:]
    assert (log.flush_closed(), fsynced) == (False, [])


def test_a_truncation_meanwhile_voids_what_was_fsynced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    fill(log, 3)
    fsync = os.fsync

    def truncated_meanwhile(file: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        log.truncate_to(1, now_ms=NOW)
        fsync(file)

    monkeypatch.setattr(os, "fsync", truncated_meanwhile)
    log.flush_closed()
    assert (log.log_end_offset, log.flushed_offset) == (1, 0)


def test_a_segment_that_retention_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, 2)
    first = log.segments[0]
    Path(first.path()).unlink()
    first.release()
    first.deleted = True
    assert log.flush() == 2


def test_a_segment_whose_file_is_missing_is_a_failure(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, 2)
    first = log.segments[0]
    Path(first.path()).unlink()
    first.release()
    with pytest.raises(ApiError, match="No such file"):
        log.flush()
    assert log.flushed_offset == 0
    assert isinstance(log.offline, FileNotFoundError)
