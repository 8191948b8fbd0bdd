"""Several log directories: each stands for itself, and what fails in one leaves the others at work."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream_broker.log import manager as manager_module
from millstream_broker.log.checkpoints import write_offsets
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import BrokenDirError, LogDir, LogDirError
from millstream_broker.log.log import Log
from millstream_broker.log.manager import Found, LogManager
from millstream_broker.protocol.errors import ApiError
from millstream_harness.log_dirs import NOW, kill, send, start

TOPIC_ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
IO_ERROR = OSError(errno.EIO, "Input/output error")
COMPACTED = LogConfig(cleanup_policy="compact", segment_bytes=400, min_cleanable_dirty_ratio=0.4)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a machine loses."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be written, as when a disk is full (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def block(path: Path) -> None:
    """Let a file that is to be written atomically fail, as on a broken disk: a folder is in its way."""
    path.with_name(path.name + ".tmp").mkdir()


def blocked(manager: LogManager, name: str) -> None:
    for home in manager.dirs:
        block(home.path / name)


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
    """It is the configuration that is wrong, not a disk; the locks that were taken are let go."""
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
    """Have the disk fail as a directory is listed."""
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
    """Nothing of it is known to be on the disk, compacted or replicated."""
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
    """As Kafka wrote it, and versions before."""
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
    """Segments before a start that Kafka wrote go at once, and the disk refuses that."""
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
    path = home / ".kafka_cleanshutdown"
    return path.read_text() if path.exists() else None


SYNCED, NOT_SYNCED = (f"version=0\nsynced={word}\n" for word in ("true", "false"))


@pytest.mark.parametrize(("missing", "expected"), [(0, SYNCED), (1, NOT_SYNCED)])
def test_a_stop_fsyncs_up_to_its_limit(tmp_path: Path, missing: int, expected: str) -> None:
    """Of all directories together."""
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
    """The marker of one does not know in which one it was."""
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
        f"{tmp_path / 'b'}: no clean shutdown marker: log.dirs: {tmp_path / 'b' / '.kafka_cleanshutdown'} cannot be "
        "written: Is a directory. Make the directory writable and leave it some space.",
    ]
    assert [marker(tmp_path / name) for name in "abc"] == [None, None, SYNCED]
    start(tmp_path / "a", tmp_path / "b").close()  # no lock is left


# -- failing ------------------------------------------------------------------------------------------------------


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
        manager.let_go(failed)
    failed.fail(IO_ERROR)
    assert manager.let_go(failed) == [Found("t", partition, TOPIC_ID) for partition in (0, 2)]
    assert manager.let_go(failed) == []
    assert manager.offline == {failed.path: f"log.dirs: {failed.path} cannot be used: Input/output error."}
    assert manager.get("t", 0) is None
    assert not failed.is_locked
    manager.close()


# -- new partitions -----------------------------------------------------------------------------------------------


def test_a_failed_directory_gets_no_new_partition(tmp_path: Path) -> None:
    """Though it has the fewest, before it is let go."""
    manager = start(tmp_path / "a", tmp_path / "b")
    manager.dirs[0].fail(IO_ERROR)
    for partition in range(3):
        assert manager.get_or_create("t", partition).directory.parent == tmp_path / "b"
    assert not list((tmp_path / "a").glob("t-*"))
    manager.close()


def test_a_partition_goes_to_the_next_directory_where_one_is_gone(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    assert manager.get_or_create("t", 0).directory.parent == tmp_path / "b"
    assert manager.dirs[0].failure is not None
    assert not (tmp_path / "a").exists(), "the folder below a mount point is not the disk"
    manager.close()


def test_without_a_directory_there_is_no_new_partition(tmp_path: Path) -> None:
    manager = start(tmp_path)
    with full_disk(), pytest.raises(LogDirError) as caught:
        manager.get_or_create("t", 0, TOPIC_ID)
    assert str(caught.value) == f"{tmp_path / 't-0'} cannot be made: File too large"
    assert not (tmp_path / "t-0").exists(), "half a partition is not left behind"
    assert manager.dirs[0].failure is None, "it is only full"
    manager.dirs[0].fail(IO_ERROR)
    with pytest.raises(LogDirError, match=r"^no log directory is left$"):
        manager.get_or_create("t", 0, TOPIC_ID)
    manager.close()


def test_a_folder_that_was_there_stays_where_it_cannot_be_opened(tmp_path: Path) -> None:
    manager = start(tmp_path)
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "notes").write_text("")
    with full_disk(), pytest.raises(LogDirError):
        manager.get_or_create("t", 0, TOPIC_ID)
    assert (tmp_path / "t-0" / "notes").exists()
    manager.close()


def test_a_folder_of_another_topic_is_put_aside(tmp_path: Path) -> None:
    manager = start(tmp_path)
    (tmp_path / "t-0").mkdir()
    manager_module.folders.write_topic_id(tmp_path / "t-0", OTHER_ID)
    (tmp_path / "t-0" / "notes").write_text("")
    with full_disk(), pytest.raises(LogDirError):
        manager.get_or_create("t", 0, TOPIC_ID)
    assert not (tmp_path / "t-0").exists(), "what was made in its place goes"
    assert manager.get_or_create("t", 0, TOPIC_ID).topic_id == TOPIC_ID
    assert [path.name for path in tmp_path.glob("t-0*/notes")] == ["notes"]
    manager.remove_deleted()
    assert [path.name for path in tmp_path.glob("t-0*")] == ["t-0"]
    manager.close()


@pytest.mark.parametrize("there", [None, TOPIC_ID])
@pytest.mark.parametrize("wanted", [None, TOPIC_ID])
def test_a_folder_of_the_same_topic_is_taken(
    tmp_path: Path, there: uuid.UUID | None, wanted: uuid.UUID | None
) -> None:
    """Also where one of them does not say which topic it is."""
    manager = start(tmp_path)
    (tmp_path / "t-0").mkdir()
    if there is not None:
        manager_module.folders.write_topic_id(tmp_path / "t-0", there)
    (tmp_path / "t-0" / "notes").write_text("")
    log = manager.get_or_create("t", 0, wanted)
    assert (log.topic_id, (log.directory / "notes").exists()) == (wanted, True)
    manager.close()


def test_a_log_keeps_the_topic_id_that_it_has(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0)
    assert manager.get_or_create("t", 0) is log
    assert log.topic_id is None
    for asked in (TOPIC_ID, OTHER_ID, None):
        assert manager.get_or_create("t", 0, asked) is log
        assert manager_module.folders.read_topic_id(log.directory) == log.topic_id == TOPIC_ID
    manager.close()


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_log_whose_topic_id_cannot_be_written_is_refused(tmp_path: Path, is_broken: bool) -> None:
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0)
    reason = "Is a directory" if is_broken else "File too large"
    if is_broken:
        block(log.directory / "partition.metadata")
    with full_disk(), pytest.raises(LogDirError, match=f"^{log.directory} cannot be written: {reason}$"):
        manager.get_or_create("t", 0, TOPIC_ID)
    assert log.topic_id is None
    assert (manager.dirs[0].failure is not None) == is_broken
    manager.close()


# -- deletion -----------------------------------------------------------------------------------------------------


def test_logs_of_a_name_are_released_in_whichever_directory(tmp_path: Path) -> None:
    for name, topic_id in (("b", OTHER_ID), ("c", TOPIC_ID)):
        manager = start(tmp_path / name)
        manager.get_or_create("t", 0, topic_id)
        manager.close()
    manager = start(*(tmp_path / name for name in "abcd"))
    released = manager.release_others(("t", 0), lambda topic_id: topic_id == TOPIC_ID)
    assert [(one.home.path, one.log.topic_id) for one in released] == [(tmp_path / "b", OTHER_ID)]
    kept = manager.get("t", 0)
    assert kept is not None
    assert kept.topic_id == TOPIC_ID
    (one,) = manager.release_others(("t", 0), lambda topic_id: False)
    assert (one.log, manager.get("t", 0), len(manager)) == (kept, None, 0)
    manager.put_aside([*released, one])
    manager.remove_deleted()
    assert not list(tmp_path.glob("*/t-0*"))
    manager.close()


def test_a_release_of_the_log_that_is_not_served_leaves_the_other(tmp_path: Path) -> None:
    for name, topic_id in (("a", OTHER_ID), ("b", TOPIC_ID)):
        manager = start(tmp_path / name)
        manager.get_or_create("t", 0, topic_id)
        manager.close()
    manager = start(tmp_path / "a", tmp_path / "b")
    served = manager.get("t", 0)
    assert served is not None
    manager.release_others(("t", 0), lambda topic_id: topic_id == served.topic_id)
    assert manager.get("t", 0) is served
    kill(manager)


def test_a_folder_that_cannot_be_renamed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broken disk takes its directory. The files of a log that is deleted may be gone."""
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0)
    shutil.rmtree(log.directory)
    manager.delete("t", 0)
    assert caplog.messages[0] == f"{log.directory}: cannot be renamed: No such file or directory"
    assert manager.dirs[0].failure is not None
    manager.close()


def test_a_segment_that_cannot_be_unlinked_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = start(tmp_path, config=LogConfig(segment_bytes=200))
    logs = [manager.get_or_create("t", partition) for partition in range(2)]
    for log in logs:
        send(log, 5)
        log.delete_records_before(5)
    (path,) = logs[0].directory.glob(f"{0:020d}.log.deleted")
    path.unlink()
    path.mkdir()
    manager.remove_deleted()
    assert [message for message in caplog.messages if "unlink" in message] == [
        f"{logs[0].directory}: cannot unlink what was deleted: {logs[0].directory}: Is a directory"
    ]
    assert not list(logs[1].directory.glob("*.deleted"))
    manager.close()


def test_a_log_may_go_while_its_segments_are_unlinked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path, config=LogConfig(segment_bytes=200))
    log = manager.get_or_create("t", 0)
    send(log, 5)
    log.delete_records_before(5)
    log.move(tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved")
    manager.remove_deleted()
    assert (caplog.messages, manager.dirs[0].failure) == ([], None)
    manager.unlock()


# -- compaction ---------------------------------------------------------------------------------------------------


def dirty(manager: LogManager, partition: int, segments: int, *, clean: int = 0) -> Log:
    """A log with so many closed segments, the first of which are compacted."""
    log = manager.get_or_create("t", partition)
    while len(log.segments) <= segments:
        send(log)
    log.first_dirty_offset = log.segments[clean].base_offset
    return log


def test_the_dirtiest_log_is_compacted_first(tmp_path: Path) -> None:
    manager = start(tmp_path, config=COMPACTED)
    half = dirty(manager, 0, 4, clean=2)
    most = dirty(manager, 1, 4, clean=1)
    dirty(manager, 2, 8, clean=5)
    compaction = manager.next_compaction(NOW)
    assert compaction is not None
    assert compaction.log is most
    following = manager.next_compaction(NOW, busy=[most])
    assert following is not None
    assert following.log is half
    for expected in (most, half, None):
        found = manager.next_compaction(NOW)
        assert (found.log if found else None) is expected
        if found:
            while found.work():
                found.commit()
            found.finish()
            assert found.log.first_dirty_offset == found.log.segments.active.base_offset
    manager.close()


def test_logs_that_are_kept_whole_or_offline_are_not_compacted(tmp_path: Path) -> None:
    manager = start(tmp_path, config=COMPACTED)
    kept, offline, last = (dirty(manager, partition, 3) for partition in range(3))
    kept.config = LogConfig()
    offline.offline = IO_ERROR
    compaction = manager.next_compaction(NOW)
    assert compaction is not None
    assert compaction.log is last
    manager.close()


def test_nothing_above_the_high_watermark_is_compacted(tmp_path: Path) -> None:
    manager = start(tmp_path, config=COMPACTED)
    log = dirty(manager, 0, 3)
    second = log.segments[1].base_offset
    assert manager.next_compaction(NOW, lambda key: second - 1) is None
    asked = []

    def high_watermark_of(key: tuple[str, int]) -> int:
        asked.append(key)
        return second

    compaction = manager.next_compaction(NOW, high_watermark_of)
    assert compaction is not None
    while compaction.work():
        compaction.commit()
    compaction.finish()
    assert (asked, log.first_dirty_offset) == ([("t", 0)], second)
    manager.close()


@pytest.mark.parametrize("error", [OSError(errno.EFBIG, "File too large"), RuntimeError("damaged")])
def test_a_log_that_cannot_be_looked_at_leaves_the_turn_to_others(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path, config=COMPACTED)
    logs = [dirty(manager, partition, 3) for partition in range(2)]
    due = manager_module.due

    def fail_first(log: Log, now_ms: int, high_watermark: int) -> tuple[float, int] | None:
        if log is logs[0]:
            raise error
        return due(log, now_ms, high_watermark)

    monkeypatch.setattr(manager_module, "due", fail_first)
    compaction = manager.next_compaction(NOW)
    assert compaction is not None
    assert compaction.log is logs[1]
    assert str(logs[0].directory) in caplog.messages[0]
    assert logs[0].uncleanable == isinstance(error, RuntimeError)
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
    assert caplog.messages == [f"{tmp_path / name}: no checkpoints: File too large" for name in "ab"]
    assert [home.failure for home in manager.dirs] == [None, None]
    manager.close()


def test_checkpoints_that_a_broken_disk_refuses_take_the_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    block(tmp_path / "a" / "log-start-offset-checkpoint.by-id")
    manager.checkpoint()
    assert [home.failure is None for home in manager.dirs] == [False, True]
    assert not [message for message in caplog.messages if "no checkpoints" in message], "its failure tells"
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
    """One that cannot be fsynced is named, and the stop goes on."""
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
