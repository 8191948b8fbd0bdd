"""Periodic work on all logs: retention in steps, fsync of closed segments and by time."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_broker.log import upkeep
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_kafka.batch import Record, build_batch

NOW = 1_700_000_000_000
LATER = NOW + 5000


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    """Its logs keep records for a second, and are flushed after half a second."""
    manager = LogManager([tmp_path], LogConfig(retention_ms=1000, flush_ms=500))
    manager.lock()
    manager.start()
    yield manager
    manager.close()


def fill(log: Log, segments: int) -> None:
    """Fill ``segments`` segments; the last is the active one."""
    for number in range(segments):
        if number:
            log.roll(now_ms=NOW)
        log.append(build_batch([Record(b"k", b"v", NOW)]), leader_epoch=0, now_ms=NOW)


def retention(manager: LogManager) -> list[int]:
    return list(itertools.islice(upkeep.enforce_retention(manager, LATER), 20))


def fails(error: Exception, monkeypatch: pytest.MonkeyPatch, failing: Log) -> None:
    """Retention of this log fails, and of no other."""
    delete = Log.delete_old_segments

    def faulty(log: Log, *args: int, **how: int) -> int:
        if log is failing:
            raise error
        return delete(log, *args, **how)

    monkeypatch.setattr(Log, "delete_old_segments", faulty)


def test_retention_takes_a_few_segments_at_a_time(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MOST_DELETED", 2)
    for partition, segments in enumerate((5, 4, 1)):
        fill(manager.get_or_create("t", partition), segments)
    assert retention(manager) == [2, 2, 1, 2, 2, 0, 1]
    assert [log.log_start_offset for log in manager] == [5, 4, 1]


def test_retention_spares_what_is_not_replicated(manager: LogManager) -> None:
    for partition in range(2):
        fill(manager.get_or_create("t", partition), 5)
    high_watermarks = {("t", 0): 2, ("t", 1): 4}
    assert list(upkeep.enforce_retention(manager, LATER, high_watermarks.__getitem__)) == [2, 4]


def test_retention_rolls_idle_segments_and_forgets_idle_producers(manager: LogManager) -> None:
    log = manager.get_or_create("t", 0)
    batch = build_batch([Record(b"k", b"v", NOW)], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append(batch, leader_epoch=0, now_ms=NOW)
    log.segments.active.created_ms = NOW
    log.config = LogConfig(segment_ms=1000, producer_id_expiration_ms=1000)
    assert retention(manager) == [0]
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert not log.producers.by_id


def test_retention_of_one_log_fails_alone(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = [manager.get_or_create("t", partition) for partition in range(2)]
    for log in logs:
        fill(log, 3)
    for error, expected in (
        (OSError(errno.ENOSPC, "No space left"), f"{logs[0].directory}: retention failed: "),
        (ValueError("unexpected"), f"{logs[0].directory}: retention failed\n"),
    ):
        with monkeypatch.context() as patched:
            fails(error, patched, logs[0])
            assert retention(manager) == [0, 3 if isinstance(error, OSError) else 0]
        assert expected in caplog.text
    assert [log.log_start_offset for log in logs] == [0, 3]


def test_retention_ends_with_a_disk_that_fails(manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [manager.get_or_create("t", partition) for partition in range(2)]
    for log in logs:
        fill(log, 3)
    fails(OSError(errno.EIO, "Input/output error"), monkeypatch, logs[0])
    assert retention(manager) == [0]
    assert logs[1].log_start_offset == 0


def test_a_log_that_is_deleted_meanwhile_is_left_out(manager: LogManager) -> None:
    for partition in range(3):
        manager.get_or_create("t", partition)
    logs = upkeep.logs_of(manager)
    assert next(logs)[0] == ("t", 0)
    manager.delete("t", 1)
    assert [key for key, _ in logs] == [("t", 2)]


def test_closed_segments_are_not_fsynced_any_more_where_the_disk_failed(manager: LogManager) -> None:
    log = manager.get_or_create("t", 0)
    fill(log, 3)
    (home,) = manager.dirs
    assert home.rolled == {log}
    home.failure = OSError(errno.EIO, "")
    upkeep.flush_rolled(home)
    assert (home.rolled, log.flushed_offset) == ({log}, 0)
    home.failure = None
    upkeep.flush_rolled(home)
    assert (home.rolled, log.flushed_offset) == (set(), 2)


def test_an_fsync_that_fails_is_told_and_not_repeated(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = manager.get_or_create("t", 0)
    fill(log, 3)
    (home,) = manager.dirs

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        upkeep.flush_rolled(home)
    assert (home.rolled, log.flushed_offset) == (set(), 0)
    assert f"{log.directory}: Input/output error" in caplog.messages


def test_a_flush_of_a_deleted_log_is_no_news(manager: LogManager, caplog: pytest.LogCaptureFixture) -> None:
    log = manager.get_or_create("t", 0)
    fill(log, 3)
    (home,) = manager.dirs
    manager.delete("t", 0)
    home.rolled.add(log)
    upkeep.flush_rolled(home)
    assert not home.rolled
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_log_is_flushed_when_its_oldest_record_is_as_old_as_flush_ms(manager: LogManager) -> None:
    log = manager.get_or_create("t", 0)
    upkeep.flush_due(manager, NOW)
    fill(log, 1)
    for now, flushed in ((NOW + 499, 0), (NOW + 500, 1)):
        upkeep.flush_due(manager, now)
        assert log.flushed_offset == flushed
    fill(log, 1)
    upkeep.flush_due(manager, NOW + 999)
    assert log.flushed_offset == 1, "counted from the last flush"
    upkeep.flush_due(manager, NOW + 1000)
    assert log.flushed_offset == 2
