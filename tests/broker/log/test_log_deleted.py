"""A deleted log: work in progress on it ends and writes nothing."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log import checkpoints, upkeep
from millstream_broker.log.compaction import Allowance, Compaction, Throttler
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness import log_dirs
from millstream_harness.log_dirs import NOW, send

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    manager = log_dirs.start(tmp_path)
    yield manager
    manager.unlock()


@pytest.fixture
def log(manager: LogManager) -> Log:
    """A log with three closed segments."""
    log = manager.get_or_create("t", 0, OLD)
    for _ in range(3):
        send(log, 2)
        log.roll(now_ms=NOW)
    return log


def checkpointed(folder: Path, name: str) -> dict[tuple[str, int], int]:
    return dict(checkpoints.load(str(folder / name)).offsets)


def test_a_log_is_deleted_for_everybody_before_its_folder_is_renamed(manager: LogManager, log: Log) -> None:
    """Retention on the loop neither rolls nor renames in a folder that a thread is about to rename."""
    released = manager.release([("t", 0)])
    log.config = replace(log.config, retention_ms=1)
    before = sorted(os.listdir(log.directory))
    assert log.is_deleted
    assert log.delete_old_segments(2 * NOW) == 0
    assert list(upkeep.logs_of(manager)) == []
    assert sorted(os.listdir(log.directory)) == before
    manager.put_aside(released)


def test_a_checkpoint_under_way_leaves_it_out(tmp_path: Path, manager: LogManager, log: Log) -> None:
    log.flush()
    manager.checkpoint()
    assert checkpointed(tmp_path, checkpoints.RECOVERY_POINTS) == {("t", 0): 6}
    log.give_up()  # the checkpoint already has its list of logs
    manager.checkpoint()
    assert checkpointed(tmp_path, checkpoints.RECOVERY_POINTS) == {}


def test_its_high_watermark_is_not_written_for_the_topic_that_has_its_name(
    tmp_path: Path, manager: LogManager, log: Log
) -> None:
    entries = {("t", 0): (log.topic_id, 6)}  # the loop's, before the topic was deleted and made anew
    manager.delete("t", 0)
    manager.get_or_create("t", 0, NEW)
    manager.write_high_watermarks(entries)
    assert checkpointed(tmp_path, checkpoints.HIGH_WATERMARKS) == {}
    manager.write_high_watermarks({("t", 0): (NEW, 3)})
    assert checkpointed(tmp_path, checkpoints.HIGH_WATERMARKS) == {("t", 0): 3}


class Deleting(Throttler):
    """Deletes the log when the pass reads its first batch."""

    def __init__(self, manager: LogManager) -> None:
        super().__init__(lambda: 1e9)
        self.manager = manager
        self.batches = 0

    def take(self, size: int) -> float:
        self.batches += 1
        self.manager.delete("t", 0)
        return 0.0


def test_a_compaction_lets_go_of_it_at_the_next_batch(manager: LogManager, log: Log) -> None:
    throttle = Deleting(manager)
    compaction = Compaction(log, 6, now_ms=NOW, allowance=Allowance(throttle=throttle))
    assert not compaction.work()
    assert (throttle.batches, log.uncleanable) == (1, False)


def test_its_files_are_closed_though_a_thread_opened_them_after_it_was_put_aside(
    manager: LogManager, log: Log
) -> None:
    """Otherwise the files would take disk space until a thousand other files have been opened."""
    manager.delete("t", 0)
    log.segments[0].open_file()
    assert len(manager.files) == 1
    manager.remove_deleted()
    assert len(manager.files) == 0


def logs_in_memory(manager: LogManager) -> list[str]:
    """The folders of the manager's logs that anything still refers to."""
    gc.collect()
    logs = (each for each in gc.get_objects() if isinstance(each, Log))
    folders = [str(home.path) for home in manager.dirs]
    return [str(log.directory) for log in logs if str(log.directory.parent) in folders]


def test_nothing_is_left_of_deleted_logs(manager: LogManager) -> None:
    """Whichever background work has seen them."""
    for partition in range(20):
        log = manager.get_or_create("t", partition, OLD)
        log.config = replace(log.config, flush_ms=1, cleanup_policy="compact,delete")
        send(log, 2)
        log.roll(now_ms=NOW)
    del log
    assert len(logs_in_memory(manager)) == 20
    retention = upkeep.enforce_retention(manager, NOW)
    next(retention)
    for now_ms in (NOW, NOW + 10):
        upkeep.flush_due(manager, now_ms)
    assert manager.next_compaction(NOW) is not None
    manager.checkpoint()
    manager.put_aside(manager.release([("t", partition) for partition in range(20)]))
    list(retention)
    for home in manager.dirs:
        upkeep.flush_rolled(home)
    manager.remove_deleted()
    assert (logs_in_memory(manager), len(manager.files), len(manager)) == ([], 0, 0)
    assert not any(home.rolled or home.logs for home in manager.dirs)
