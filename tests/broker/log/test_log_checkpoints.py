"""Checkpoints belong to topic ids: after any interruption or restore, no entry applies to another topic's log."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.log import checkpoints
from millstream_broker.log.checkpoints import CheckpointError
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDirError
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness import log_dirs
from millstream_harness.log_dirs import kill, lose_power, send
from millstream_kafka.kafka_uuid import uuid_text

pytestmark = pytest.mark.usefixtures("no_fsync")

NOW = 1_700_000_000_000
OLD, NEW, NEXT = (uuid.UUID(int=number) for number in (1, 2, 3))
KEY = "t", 0
NAMES = (
    checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_START_OFFSETS,
    checkpoints.CLEANER_OFFSETS,
    checkpoints.HIGH_WATERMARKS,
)


def start(*dirs: Path) -> LogManager:
    return log_dirs.start(*dirs, config=LogConfig(cleanup_policy="compact,delete"))


def of(manager: LogManager) -> Log:
    log = manager.get(*KEY)
    assert log is not None
    return log


def write(manager: LogManager, high_watermark: int) -> None:
    manager.checkpoint()
    manager.write_high_watermarks({KEY: (of(manager).topic_id, high_watermark)})


def make_old(manager: LogManager) -> None:
    """A log of 20 records: flushed, compacted, starting at 15, with all checkpoints written."""
    log = manager.get_or_create(*KEY, OLD)
    send(log, 20)
    log.flush()
    log.delete_records_before(15)
    log.first_dirty_offset = 18
    write(manager, 20)


def offsets(log: Log) -> tuple[int, int, int, int]:
    """Log start, recovery point, first dirty offset, high watermark."""
    return log.log_start_offset, log.flushed_offset, log.first_dirty_offset, log.last_high_watermark


def is_new(log: Log, end: int) -> bool:
    return log.topic_id == NEW and log.log_end_offset == end and offsets(log) == (0, 0, 0, 0)


class Killed(BaseException):
    """The process ends here."""


class Kill:
    """Kill the process at the n-th rename or unlink."""

    def __init__(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = at
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return call(*args, **options)

        return attempt


def administer(manager: LogManager, logs: list[Log]) -> None:
    """Recreate the topic twice, with checkpoints at some points."""
    manager.delete(*KEY)
    manager.remove_deleted()
    logs.append(log := manager.get_or_create(*KEY, NEW))
    send(log, 30)
    write(manager, 7)
    log.delete_records_before(4)
    write(manager, 8)
    manager.delete(*KEY)
    logs.append(log := manager.get_or_create(*KEY, NEXT))
    send(log, 5)
    write(manager, 5)
    manager.remove_deleted()


@pytest.mark.parametrize("power", [True, False], ids=["kill", "loss of power"])
def test_a_kill_at_any_moment(tmp_path: Path, power: bool) -> None:
    moment, is_over = 0, False
    seen = set()
    while not is_over:
        folder = tmp_path / f"{moment}"
        manager = start(folder)
        make_old(manager)
        logs = [of(manager)]
        with pytest.MonkeyPatch.context() as monkeypatch:
            Kill(moment, monkeypatch)
            try:
                administer(manager, logs)
                is_over = True
            except Killed:
                pass
        kill(manager)
        if not power:
            lose_power(folder)
        manager = start(folder)
        for log in manager:
            seen.add(log.topic_id)
            before = [one for one in logs if one.topic_id == log.topic_id]
            assert log.log_end_offset == (before[0].log_end_offset if before else 0)
            if log.topic_id == OLD:
                assert offsets(log) == (15, 20, 18, 20)
            else:
                assert log.log_start_offset in (0, before[0].log_start_offset if before else 0)
                assert log.flushed_offset == log.log_start_offset, "it was never flushed"
                assert log.first_dirty_offset == 0, "it was never compacted"
                assert log.last_high_watermark in {NEW: (0, 7, 8), NEXT: (0, 5), None: (0,)}[log.topic_id]
        kill(manager)
        moment += 1
    assert seen >= {OLD, NEW, NEXT}
    assert moment > 20


def test_records_after_a_truncation_below_the_log_start_outlive_a_kill(tmp_path: Path) -> None:
    """The checkpointed start was beyond them."""
    manager = start(tmp_path)
    make_old(manager)
    log = of(manager)
    log.truncate_to(10, now_ms=NOW)
    send(log, 10)
    kill(manager)
    manager = start(tmp_path)
    assert (of(manager).log_start_offset, of(manager).log_end_offset) == (10, 20)
    kill(manager)


def test_the_entries_of_a_topic_go_with_it(tmp_path: Path) -> None:
    manager = start(tmp_path)
    make_old(manager)
    for name in NAMES:
        assert "t 0 " in (tmp_path / name).read_text()
        assert f"t 0 {uuid_text(OLD)} " in (tmp_path / f"{name}.by-id").read_text()
    manager.delete(*KEY)
    manager.checkpoint()
    manager.write_high_watermarks({})
    for name in NAMES:
        assert (tmp_path / name).read_text() == "0\n0\n"
        assert (tmp_path / f"{name}.by-id").read_text() == "0\n0\n"
    manager.close()


@pytest.mark.parametrize("power", [True, False], ids=["kill", "loss of power"])
def test_what_is_ignored_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, power: bool) -> None:
    manager = start(tmp_path)
    make_old(manager)
    manager.delete(*KEY)
    send(manager.get_or_create(*KEY, NEW), 30)
    kill(manager)
    if not power:
        lose_power(tmp_path)
    with caplog.at_level(logging.WARNING):
        manager = start(tmp_path)
    assert is_new(of(manager), 30)
    (line,) = caplog.messages
    assert line == (
        f"{tmp_path}: t-0 has another topic id than these entries, which are ignored: "
        "recovery-point-offset-checkpoint 20, log-start-offset-checkpoint 15, "
        "cleaner-offset-checkpoint 18, replication-offset-checkpoint 20"
    )
    manager.close()


def test_the_successor_in_another_directory(tmp_path: Path) -> None:
    """A directory's entries apply only to its own logs."""
    first, second = tmp_path / "first", tmp_path / "second"
    manager = start(first, second)
    manager.get_or_create("filler", 0)
    make_old(manager)
    home = manager.partitions()[KEY]
    manager.delete(*KEY)
    for partition in range(1, 4):
        manager.get_or_create("filler", partition)
    while KEY not in manager.partitions():
        manager.get_or_create("filler", len(manager))
        if min(manager.dirs, key=lambda each: len(each.logs)) is not home:
            send(manager.get_or_create(*KEY, NEW), 30)
    assert manager.partitions()[KEY] is not home
    kill(manager)
    manager = start(first, second)
    assert is_new(of(manager), 30)
    manager.close()


@pytest.mark.parametrize("suffix", ["", ".by-id"], ids=["Kafka's", "ours"])
@pytest.mark.parametrize("name", NAMES)
def test_a_single_file_is_restored(tmp_path: Path, name: str, suffix: str) -> None:
    """The file is from before the topic was recreated."""
    manager = start(tmp_path)
    make_old(manager)
    shutil.copy(tmp_path / f"{name}{suffix}", tmp_path / "copy")
    manager.delete(*KEY)
    send(manager.get_or_create(*KEY, NEW), 30)
    write(manager, 0)
    kill(manager)
    (tmp_path / "copy").replace(tmp_path / f"{name}{suffix}")
    manager = start(tmp_path)
    assert is_new(of(manager), 30)
    manager.close()


def test_a_folder_is_put_into_the_place_of_its_successor(tmp_path: Path) -> None:
    """A restored copy of the folder: its own entries are gone, and those of the other log do not apply."""
    manager = start(tmp_path / "dir")
    send(manager.get_or_create(*KEY, NEW), 30)
    kill(manager)
    (tmp_path / "dir" / "t-0").rename(tmp_path / "copy")
    manager = start(tmp_path / "dir")
    make_old(manager)
    kill(manager)
    shutil.rmtree(tmp_path / "dir" / "t-0")
    (tmp_path / "copy").rename(tmp_path / "dir" / "t-0")
    manager = start(tmp_path / "dir")
    assert is_new(of(manager), 30)
    manager.close()


def without_ids(folder: Path) -> None:
    """As Kafka and earlier versions write it."""
    for name in NAMES:
        (folder / f"{name}.by-id").unlink()


def test_a_directory_without_ids(tmp_path: Path) -> None:
    """Entries without ids apply once, at the first start; from then on ids count, even before the next checkpoint."""
    manager = start(tmp_path)
    make_old(manager)
    kill(manager)
    without_ids(tmp_path)
    manager = start(tmp_path)
    assert offsets(of(manager)) == (15, 20, 18, 20)
    manager.delete(*KEY)
    send(manager.get_or_create(*KEY, NEW), 30)
    kill(manager)
    manager = start(tmp_path)
    assert is_new(of(manager), 30)
    manager.close()


def test_a_log_start_without_an_id_behind_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It must be another log's start."""
    manager = start(tmp_path)
    make_old(manager)
    manager.delete(*KEY)
    send(manager.get_or_create(*KEY, NEW), 8)
    kill(manager)
    without_ids(tmp_path)
    with caplog.at_level(logging.WARNING):
        manager = start(tmp_path)
    assert (of(manager).log_start_offset, of(manager).log_end_offset) == (0, 8)
    assert caplog.messages == [f"{tmp_path / 't-0'}: the log start 15 is beyond its end 8: ignored"]
    manager.close()


def test_a_log_start_of_its_own_behind_the_end(tmp_path: Path) -> None:
    """The log start survives a loss of power that its records do not: offsets never go back."""
    manager = start(tmp_path)
    log = manager.get_or_create(*KEY, NEW)
    send(log, 20)
    log.delete_records_before(15)
    manager.checkpoint()
    kill(manager)
    with (tmp_path / "t-0" / f"{0:020d}.log").open("r+b") as file:
        file.truncate(200)
    lose_power(tmp_path)
    manager = start(tmp_path)
    assert (of(manager).log_start_offset, of(manager).log_end_offset) == (15, 15)
    manager.close()


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
@pytest.mark.parametrize("topic_id", [OLD, NEW, NEXT])
def test_two_directories_have_logs_of_one_name(
    tmp_path: Path, order: tuple[str, str], topic_id: uuid.UUID
) -> None:
    """One directory was away while the topic was recreated. Once the topic's id is known, the other log is a stray."""
    manager = start(tmp_path / "first")
    make_old(manager)
    manager.close()
    manager = start(tmp_path / "second")
    send(manager.get_or_create(*KEY, NEW), 30)
    manager.close()
    dirs = [tmp_path / name for name in order]
    for _ in range(2):  # another stop changes nothing
        manager = start(*dirs)
        manager.checkpoint()
        manager.close()
    manager = start(*dirs)
    manager.put_aside(manager.release_others(KEY, lambda there: there == topic_id))
    log = manager.get_or_create(*KEY, topic_id)
    assert (log.topic_id, log.log_end_offset) == (topic_id, {OLD: 20, NEW: 30, NEXT: 0}[topic_id])
    assert log.log_start_offset == (15 if topic_id == OLD else 0)
    assert list(manager) == [log]
    manager.remove_deleted()
    strays = {(stray.topic_id, stray.path.parent.name) for stray in manager.strays}
    assert strays == {(OLD, "first"), (NEW, "second")} - {(log.topic_id, log.directory.parent.name)}
    assert {*tmp_path.glob("*/t-0*")} == {log.directory, *(stray.path for stray in manager.strays)}
    manager.close()


@pytest.mark.parametrize("order", [("less", "more"), ("more", "less")])
def test_of_two_logs_of_a_partition_the_more_complete_one_is_used(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    for folder, count in (("less", 3), ("more", 5)):
        manager = start(tmp_path / folder)
        send(manager.get_or_create(*KEY, OLD), count)
        manager.close()
    for _ in range(2):
        manager = start(*(tmp_path / name for name in order))
        assert (of(manager).directory, of(manager).log_end_offset) == (tmp_path / "more" / "t-0", 5)
        (stray,) = manager.strays
        assert (stray.path.parent.name, stray.topic_id) == ("less", OLD)
        assert manager.strays.end(stray).offset == 3
        manager.close()


@pytest.mark.parametrize(("one", "other"), [(None, OLD), (OLD, None), (None, None)])
def test_two_directories_have_logs_of_a_name_and_not_both_say_whose(
    tmp_path: Path, one: uuid.UUID | None, other: uuid.UUID | None
) -> None:
    for folder, topic_id in (("first", one), ("second", other), ("third", NEW)):
        manager = start(tmp_path / folder)
        manager.get_or_create(*KEY, topic_id)
        manager.close()
    with pytest.raises(LogDirError, match="first/t-0 hold the same partition"):
        start(tmp_path / "first", tmp_path / "third", tmp_path / "second")


def test_a_directory_fails_that_has_a_log_of_a_name(tmp_path: Path) -> None:
    """The log that is served is in the other directory."""
    for folder, topic_id in (("first", OLD), ("second", NEW)):
        manager = start(tmp_path / folder)
        manager.get_or_create(*KEY, topic_id)
        manager.close()
    manager = start(tmp_path / "first", tmp_path / "second")
    served = manager.partitions()[KEY]
    other = next(home for home in manager.dirs if home is not served)
    other.fail(OSError(5, "Input/output error"))
    assert manager.forget_directory(other) == []
    assert of(manager).directory.parent == served.path
    manager.close()


def test_a_folder_of_an_older_topic_that_could_not_be_renamed(tmp_path: Path) -> None:
    manager = start(tmp_path)
    make_old(manager)
    with pytest.MonkeyPatch.context() as monkeypatch:

        def refuse(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", refuse)
        manager.delete(*KEY)
    assert (tmp_path / "t-0").exists()
    log = manager.get_or_create(*KEY, NEW)
    assert is_new(log, 0)
    send(log, 3)
    manager.remove_deleted()
    assert {path.name for path in tmp_path.glob("t-0*")} == {"t-0", f"t-0.{OLD.hex}-stray"}
    kill(manager)
    manager = start(tmp_path)
    assert is_new(of(manager), 3)
    manager.close()


def test_file_format(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert checkpoints.load(path).offsets == {}
    checkpoints.store(path, {("a", 2): (None, 0), ("a", 10): (OLD, 7), ("b", 1): (NEW, 5)})
    assert Path(path).read_text() == "0\n3\na 2 0\na 10 7\nb 1 5\n"
    assert Path(f"{path}.by-id").read_text() == (
        "0\n3\na 2 - 0\na 10 AAAAAAAAAAAAAAAAAAAAAQ 7\nb 1 AAAAAAAAAAAAAAAAAAAAAg 5\n"
    )
    found = checkpoints.load(path)
    assert found.offsets == {("a", 2): 0, ("a", 10): 7, ("b", 1): 5}
    assert found.applies(("a", 10), OLD)
    assert not found.applies(("a", 10), NEW)
    assert not found.applies(("a", 10), None)
    assert found.applies(("a", 2), None)
    assert not found.applies(("a", 2), OLD)
    Path(f"{path}.by-id").unlink()
    assert checkpoints.load(path).applies(("a", 10), NEW)


@pytest.mark.parametrize("content", [b"", b"0\n2\nt 0 - 1\n", b"0\n1\nt 0 1\n", b"0\n1\nt 0 - y\n", b"\xff"])
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    """Then nothing applies, not even Kafka's file: it may describe another topic."""
    manager = start(tmp_path)
    make_old(manager)
    kill(manager)
    (tmp_path / f"{name}.by-id").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}.by-id"):
        checkpoints.load(str(tmp_path / name))
    manager = start(tmp_path)
    log = of(manager)
    assert log.log_end_offset == 20
    damaged = NAMES.index(name)
    start_offset = 0 if damaged == 1 else 15
    expected = [start_offset, 20 if damaged else start_offset, 18, 20]
    if damaged > 1:
        expected[damaged] = 0
    assert list(offsets(log)) == expected
    manager.close()
