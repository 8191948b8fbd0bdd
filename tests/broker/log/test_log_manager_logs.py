"""The logs of several directories: created, deleted and chosen for compaction."""

from __future__ import annotations

import errno
import shutil
import uuid
from pathlib import Path

import pytest

from millstream_broker.log import compaction_due as due_module
from millstream_broker.log import manager as manager_module
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDirError
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness.log_dirs import NOW, block, full_disk, kill, send, start

pytestmark = pytest.mark.usefixtures("no_fsync")

TOPIC_ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
IO_ERROR = OSError(errno.EIO, "Input/output error")
COMPACTED = LogConfig(cleanup_policy="compact", segment_bytes=400, min_cleanable_dirty_ratio=0.4)


# -- new partitions -----------------------------------------------------------------------------------------------


def test_a_failed_directory_gets_no_new_partition(tmp_path: Path) -> None:
    """It holds the fewest partitions, and has not been released yet."""
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
    manager.remove_deleted()
    assert {path.name for path in tmp_path.glob("t-0*")} == {"t-0", f"t-0.{OTHER_ID.hex}-stray"}
    assert [path.parent.name for path in tmp_path.glob("t-0*/notes")] == [f"t-0.{OTHER_ID.hex}-stray"]
    manager.close()


@pytest.mark.parametrize("there", [None, TOPIC_ID])
@pytest.mark.parametrize("wanted", [None, TOPIC_ID])
def test_a_folder_of_the_same_topic_is_taken(
    tmp_path: Path, there: uuid.UUID | None, wanted: uuid.UUID | None
) -> None:
    """Even if the folder or the caller names no topic id."""
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
    assert {path.name for path in tmp_path.glob("*/t-0*")} == {
        f"t-0.{OTHER_ID.hex}-stray",
        f"t-0.{TOPIC_ID.hex}-stray",
    }
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
    """A broken disk takes its directory offline. Files of a deleted log may be missing."""
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
    assert [message for message in caplog.messages if "deleted files" in message] == [
        f"{logs[0].directory}: cannot remove deleted files: {logs[0].directory}: Is a directory"
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
    """A log with ``segments`` closed segments, the first ``clean`` of which are compacted."""
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
    due = due_module.due

    def fail_first(log: Log, now_ms: int, high_watermark: int) -> tuple[float, int] | None:
        if log is logs[0]:
            raise error
        return due(log, now_ms, high_watermark)

    monkeypatch.setattr(due_module, "due", fail_first)
    compaction = manager.next_compaction(NOW)
    assert compaction is not None
    assert compaction.log is logs[1]
    assert str(logs[0].directory) in caplog.messages[0]
    assert logs[0].uncleanable == isinstance(error, RuntimeError)
    manager.close()
