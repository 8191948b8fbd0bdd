"""Several log directories: each is independent, and a failure in one leaves the others working."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.log import manager as manager_module
from millstream_broker.log.checkpoints import write_offsets
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import BrokenDirError, LogDir, LogDirError
from millstream_broker.log.log import Log
from millstream_broker.log.manager import Found, LogManager
from millstream_harness.log_dirs import block, full_disk, kill, send, start
from millstream_kafka.protocol.errors import ApiError

pytestmark = pytest.mark.usefixtures("no_fsync")

TOPIC_ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
IO_ERROR = OSError(errno.EIO, "Input/output error")
COMPACTED = LogConfig(cleanup_policy="compact", segment_bytes=400, min_cleanable_dirty_ratio=0.4)


# -- configuration ------------------------------------------------------------------------------------------------


def test_every_log_has_the_configuration_of_its_topic(tmp_path: Path) -> None:
    configs = {"a": LogConfig(segment_bytes=1111), "b": LogConfig(segment_bytes=2222)}
    manager = LogManager([tmp_path / "each"], config_of=configs.__getitem__)
    manager.lock()
    manager.start()
    assert [manager.get_or_create(topic, 0).config for topic in "ab"] == list(configs.values())
    manager.close()
    manager = start(tmp_path / "all", config=configs["a"])
    assert manager.get_or_create("b", 0).config is configs["a"]
    manager.close()
    assert LogManager([tmp_path]).config_of("b") == LogConfig()


def test_all_logs_share_their_open_files(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for count in (1, 2):
        send(manager.get_or_create("t", count))
        assert len(manager.files) == count
    manager.close()


# -- start --------------------------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_locked_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    manager = start(tmp_path / "file", tmp_path / "a", tmp_path / "b")
    assert [home.path for home in manager.dirs] == [tmp_path / "a", tmp_path / "b"]
    assert list(manager.offline) == [tmp_path / "file"]
    assert f"{tmp_path / 'file'} cannot be used" in manager.offline[tmp_path / "file"]
    assert caplog.messages == [
        f"{manager.offline[tmp_path / 'file']} The other directories serve; "
        "partitions in this one are offline until a restart."
    ]
    manager.close()


def test_without_any_directory_there_is_no_start(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text("")
    with pytest.raises(BrokenDirError, match=f"{tmp_path / 'other'} cannot be used"):
        start(tmp_path / "one", tmp_path / "other")


def test_a_directory_of_another_broker_ends_the_start_of_all(tmp_path: Path) -> None:
    """The configuration is wrong, not a disk; the locks are released."""
    start(tmp_path / "other", broker_id=2).close()
    with pytest.raises(LogDirError, match=r"belongs to broker.id=2"):
        start(tmp_path / "own", tmp_path / "other")
    start(tmp_path / "own").close()


def test_the_cluster_is_that_of_any_directory_with_data(tmp_path: Path) -> None:
    start(tmp_path / "old").close()
    manager = LogManager([tmp_path / "new", tmp_path / "old"])
    manager.lock()
    assert manager.cluster_id == "c1"
    manager.unlock()
    assert LogManager([tmp_path / "new"]).cluster_id is None


def without_reading(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing a directory fails, as on a broken disk."""
    listed = manager_module.folders.find

    def find(directory: Path) -> object:
        if directory == path:
            raise IO_ERROR
        return listed(directory)

    monkeypatch.setattr(manager_module.folders, "find", find)


def test_a_directory_that_cannot_be_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(2):
        manager.get_or_create("t", partition)
    manager.close()
    without_reading(tmp_path / "a", monkeypatch)
    manager = start(tmp_path / "a", tmp_path / "b")
    assert manager.offline == {
        tmp_path / "a": f"log.dirs: {tmp_path / 'a'} cannot be used: Input/output error."
    }
    assert [log.directory.parent for log in manager] == [tmp_path / "b"]
    manager.close()
    monkeypatch.undo()
    start(tmp_path / "a").close()  # its lock is free


def damaged(folder: Path) -> None:
    """A log that cannot be opened: one of its files is a folder."""
    (folder / f"{0:020d}.index").unlink()
    (folder / f"{0:020d}.index").mkdir()


def test_a_log_that_cannot_be_opened_takes_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(6):
        send(manager.get_or_create("t", partition))
    manager.close()
    for partition in (0, 2):
        damaged(tmp_path / "a" / f"t-{partition}")
    manager = start(tmp_path / "a", tmp_path / "b")
    assert [message for message in caplog.messages if "cannot be opened" in message] == [
        f"{tmp_path / 'a' / 't-0'}: cannot be opened: Is a directory"
    ], "the first one tells"
    assert list(manager.offline) == [tmp_path / "a"]
    assert sorted(manager.partitions()) == [("t", 1), ("t", 3), ("t", 5)]
    manager.close()
    with pytest.raises(BrokenDirError, match=f"{tmp_path / 'a'} cannot be used: Is a directory"):
        start(tmp_path / "a")


def test_what_was_found_is_told(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    manager.get_or_create("t", 0, TOPIC_ID)
    manager.get_or_create("t", 1)
    manager.close()
    manager = LogManager([tmp_path / "a", tmp_path / "b"])
    manager.lock()
    assert manager.start() == [Found("t", 0, TOPIC_ID), Found("t", 1, None)]
    manager.close()


def test_a_directory_that_cannot_be_marked_ends_the_start(tmp_path: Path) -> None:
    start(tmp_path).close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / ".kafka_cleanshutdown").mkdir()
    with pytest.raises(BrokenDirError, match=f"log.dirs: {tmp_path} cannot be used: Is a directory"):
        start(tmp_path)


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without ids"])
def test_a_log_without_checkpoints_is_taken_from_its_start(
    tmp_path: Path, ids: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The log counts as neither flushed nor compacted nor replicated."""
    manager = start(tmp_path)
    for partition, count in enumerate((0, 5)):
        send(manager.get_or_create("t", partition), count)
    kill(manager)
    for path in tmp_path.glob("*-checkpoint*"):
        path.unlink()
    if not ids:
        write_offsets(str(tmp_path / "recovery-point-offset-checkpoint"), {("other", 0): 3})
    manager = start(tmp_path)
    for log, end in zip(manager, (0, 5), strict=True):
        assert (log.log_start_offset, log.log_end_offset) == (0, end)
        assert (log.flushed_offset, log.first_dirty_offset, log.last_high_watermark) == (0, 0, 0)
    assert not caplog.messages
    manager.close()


@pytest.mark.parametrize("moved", [4, 5])
def test_a_log_start_without_a_topic_id_counts_up_to_the_end(tmp_path: Path, moved: int) -> None:
    """As Kafka and earlier versions wrote it."""
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0)
    send(log, 5)
    log.delete_records_before(moved)
    manager.close()
    for path in tmp_path.glob("*.by-id"):
        path.unlink()
    manager = start(tmp_path)
    assert [log.log_start_offset for log in manager] == [moved]
    manager.close()


def test_a_log_start_that_cannot_be_moved_takes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments before a start that Kafka wrote are removed at once, which the disk refuses."""
    for name in ("a", "b"):
        manager = start(tmp_path / name, config=LogConfig(segment_bytes=200))
        send(manager.get_or_create(f"t{name}", 0), 20)
        manager.close()
    write_offsets(str(tmp_path / "a" / "log-start-offset-checkpoint"), {("ta", 0): 10})
    for path in tmp_path.glob("a/*.by-id"):
        path.unlink()

    def refuse(*args: object) -> None:
        raise IO_ERROR

    monkeypatch.setattr(os, "rename", refuse)
    manager = start(tmp_path / "a", tmp_path / "b")
    assert list(manager.offline) == [tmp_path / "a"]
    assert list(manager.partitions()) == [("tb", 0)]
    manager.close()


# -- stop ---------------------------------------------------------------------------------------------------------


def marker(home: Path) -> str | None:
    """The marker without the checksum of the logs' summaries."""
    path = home / ".kafka_cleanshutdown"
    return path.read_text().partition("logs.3=")[0] if path.exists() else None


SYNCED, NOT_SYNCED = (f"version=0\nsynced={word}\n" for word in ("true", "false"))


@pytest.mark.parametrize(("missing", "expected"), [(0, SYNCED), (1, NOT_SYNCED)])
def test_a_stop_fsyncs_up_to_its_limit(tmp_path: Path, missing: int, expected: str) -> None:
    """The limit covers all directories together."""
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(2):
        send(manager.get_or_create("t", partition), 3)
    manager.close(sync_limit=sum(log.size for log in manager) - missing, sync_for_s=60)
    assert [marker(tmp_path / name) for name in "ab"] == [expected, expected]


def test_a_stop_fsyncs_closed_and_active_segments(tmp_path: Path) -> None:
    manager = start(tmp_path, config=LogConfig(segment_bytes=200))
    log = manager.get_or_create("t", 0)
    send(log, 50)
    manager.close(sync_for_s=60)
    assert log.unflushed_messages == 0
    assert marker(tmp_path) == SYNCED


def test_a_log_that_was_not_fsynced_is_told_of_every_directory(tmp_path: Path) -> None:
    """A marker does not say which directory the log was in."""
    manager = start(tmp_path / "a", tmp_path / "b")
    first, second = (manager.get_or_create("t", partition) for partition in range(2))
    send(first)
    send(second)
    first.flush()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Log, "flush", lambda log: None)
        manager.close(sync_for_s=0.05)
    assert [marker(tmp_path / name) for name in "ab"] == [NOT_SYNCED, NOT_SYNCED]


def test_only_directories_that_are_locked_are_closed(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    manager.dirs[0].unlock()
    manager.close()
    assert [marker(tmp_path / name) for name in "ab"] == [None, SYNCED]


def test_a_log_that_is_offline_leaves_no_marker(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    logs = [manager.get_or_create("t", partition) for partition in range(2)]
    logs[0].offline = IO_ERROR
    manager.close()
    assert [marker(log.directory.parent) for log in logs] == [None, SYNCED]


def test_a_stop_that_cannot_write_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = start(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    logs = [manager.get_or_create("t", partition) for partition in range(3)]
    for log in logs:
        send(log)
        log.flush()
    block(logs[0].directory / f"{1:020d}.snapshot")
    block(logs[1].directory.parent / ".kafka_cleanshutdown")
    manager.close()
    assert caplog.messages == [
        f"{logs[0].directory}: not closed cleanly: Is a directory",
        f"{tmp_path / 'b'}: cannot write the clean shutdown marker: "
        f"log.dirs: {tmp_path / 'b' / '.kafka_cleanshutdown'} cannot be written: "
        "Is a directory. Make the directory writable and leave it some space.",
    ]
    assert [marker(tmp_path / name) for name in "abc"] == [None, None, SYNCED]
    start(tmp_path / "a", tmp_path / "b").close()  # no lock is left


# -- failures -----------------------------------------------------------------------------------------------------


def test_a_directory_that_failed_before_the_watch_is_told(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    manager.dirs[1].fail(IO_ERROR)
    told: list[LogDir] = []
    manager.watch(told.append)
    assert told == [manager.dirs[1]]
    manager.dirs[2].fail(IO_ERROR)
    assert told == manager.dirs[1:]
    manager.close()


def test_a_file_that_cannot_be_read_takes_its_directory(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    error = OSError(errno.EIO, "Input/output error", str(tmp_path / "b" / "t-0" / "x.log"))
    manager.read_failed(error)
    assert [home.failure for home in manager.dirs] == [None, error]
    manager.close()


def test_a_failed_directory_is_let_go_once_with_its_partitions(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(4):
        manager.get_or_create("t", partition, TOPIC_ID)
    failed = manager.dirs[0]
    with pytest.raises(AssertionError):
        manager.forget_directory(failed)
    failed.fail(IO_ERROR)
    assert manager.forget_directory(failed) == [Found("t", partition, TOPIC_ID) for partition in (0, 2)]
    assert manager.forget_directory(failed) == []
    assert manager.offline == {failed.path: f"log.dirs: {failed.path} cannot be used: Input/output error."}
    assert manager.get("t", 0) is None
    assert not failed.is_locked
    manager.close()


# -- checkpoints --------------------------------------------------------------------------------------------------


def test_high_watermarks_are_written_where_their_logs_are(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(2):
        send(manager.get_or_create("t", partition, TOPIC_ID), 5)
    manager.write_high_watermarks({("t", partition): (TOPIC_ID, 3 + partition) for partition in range(3)})
    for name, line in (("a", "t 0 3"), ("b", "t 1 4")):
        text = (tmp_path / name / "replication-offset-checkpoint").read_text()
        assert text == f"0\n1\n{line}\n"
    manager.close()


def writes(path: Path) -> bool:
    return (path / "recovery-point-offset-checkpoint").exists()


@pytest.mark.parametrize("write", [LogManager.checkpoint, lambda manager: manager.write_high_watermarks({})])
def test_checkpoints_that_do_not_fit_the_disk_are_told(
    tmp_path: Path, write: Callable[[LogManager], None], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(2):
        send(manager.get_or_create("t", partition))
    with full_disk():
        write(manager)
    assert caplog.messages == [
        f"{tmp_path / name}: cannot write checkpoints: File too large" for name in "ab"
    ]
    assert [home.failure for home in manager.dirs] == [None, None]
    manager.close()


def test_checkpoints_that_a_broken_disk_refuses_take_the_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    block(tmp_path / "a" / "log-start-offset-checkpoint.by-id")
    manager.checkpoint()
    assert [home.failure is None for home in manager.dirs] == [False, True]
    assert not [message for message in caplog.messages if "cannot write checkpoints" in message], (
        "its failure tells"
    )
    assert writes(tmp_path / "b")
    manager.close()


def test_only_directories_at_work_get_checkpoints(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    for path in tmp_path.glob("*/*-checkpoint*"):
        path.unlink()
    manager.dirs[0].fail(IO_ERROR)
    manager.dirs[1].unlock()
    manager.checkpoint()
    assert [writes(tmp_path / name) for name in "abc"] == [False, False, True]
    manager.close()


def test_a_failed_log_is_an_api_error_for_the_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error of a log that cannot be fsynced is logged, and the stop continues."""
    manager = start(tmp_path / "a", tmp_path / "b")
    logs = [manager.get_or_create("t", partition) for partition in range(2)]
    for log in logs:
        send(log)
    logs[0].offline = IO_ERROR
    manager.close()
    assert caplog.messages == [
        str(ApiError(logs[0].failed(IO_ERROR).code, f"{logs[0].directory}: Input/output error").message)
    ]
    assert [marker(tmp_path / name) for name in "ab"] == [None, NOT_SYNCED]
