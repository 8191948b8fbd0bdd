"""Log directories: ownership, what survives each kind of stop, and messages to users."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.log import upkeep
from millstream_broker.log.checkpoints import BY_ID, CheckpointError, load, read_offsets, write_offsets
from millstream_broker.log.compaction import Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import LogDir, LogDirError
from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness.log_dirs import NOW, kill, send, start
from millstream_kafka.batch import read_header
from millstream_kafka.protocol.errors import ApiError, ErrorCode

pytestmark = pytest.mark.process

TOPIC_ID = uuid.UUID("c5db41bf-48d3-41db-be1b-a6a230589398")


def test_clean_stop_and_start(tmp_path: Path) -> None:
    manager = start(tmp_path)
    send(manager.get_or_create("flights", 0, TOPIC_ID), 3)
    send(manager.get_or_create("with-dash.and_dot", 12), 2)
    manager.close(sync_for_s=300.0)  # however slow the disk is
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "meta.properties").read_text() == "version=0\nbroker.id=1\ncluster.id=c1\n"
    assert (tmp_path / "flights-0" / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")
    assert (
        tmp_path / "recovery-point-offset-checkpoint"
    ).read_text() == "0\n2\nflights 0 3\nwith-dash.and_dot 12 2\n"
    manager = LogManager([tmp_path])
    manager.lock()
    assert manager.cluster_id == "c1"
    manager.identify(1, "c1")
    found = {(each.topic, each.partition): each.topic_id for each in manager.start()}
    assert found == {("flights", 0): TOPIC_ID, ("with-dash.and_dot", 12): None}
    assert manager.dirs[0].clean
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    log = manager.get("flights", 0)
    assert log is not None
    assert (log.log_end_offset, log.topic_id) == (3, TOPIC_ID)
    assert manager.get("flights", 1) is None
    manager.close()


def test_kill_in_the_same_boot_and_loss_of_power(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0)
    send(log, 5)
    manager.checkpoint()
    kill(manager)
    torn = tmp_path / "t-0" / f"{0:020d}.log"
    with torn.open("ab") as file:
        file.write(b"torn")
    manager = start(tmp_path)
    assert not manager.dirs[0].clean
    assert manager.dirs[0].same_boot
    assert [log.log_end_offset for log in manager] == [5]
    kill(manager)
    (tmp_path / ".boot-id").write_text("another boot")
    data = bytearray(torn.read_bytes())
    data[-1] ^= 1
    torn.write_bytes(data)
    manager = start(tmp_path)
    assert not manager.dirs[0].same_boot
    assert [log.log_end_offset for log in manager] == [4]
    manager.close()


@pytest.mark.parametrize(("sync_limit", "clean"), [(0, False), (1 << 30, True)])
def test_a_clean_stop_outlives_a_reboot_only_if_it_was_synced(
    tmp_path: Path, sync_limit: int, clean: bool
) -> None:
    manager = start(tmp_path)
    send(manager.get_or_create("t", 0), 5)
    manager.close(sync_limit=sync_limit, sync_for_s=60)
    (tmp_path / ".boot-id").write_text("another boot")
    manager = start(tmp_path)
    assert manager.dirs[0].clean == clean
    assert [log.log_end_offset for log in manager] == [5]
    manager.close()


def test_closed_segments_are_fsynced_in_the_background(tmp_path: Path) -> None:
    """After a loss of power only the active segment is read: damage in an older one goes unnoticed."""
    manager = start(tmp_path, config=LogConfig(segment_bytes=500))
    log = manager.get_or_create("t", 0)
    send(log, 200)
    (home,) = manager.dirs
    assert home.rolled == {log}
    assert log.flushed_offset == 0
    upkeep.flush_rolled(home)
    assert log.flushed_offset == log.segments.active.base_offset > 100
    assert not home.rolled
    manager.checkpoint()
    kill(manager)
    (tmp_path / ".boot-id").write_text("another boot")
    older = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(older.read_bytes())
    data[-1] ^= 1
    older.write_bytes(data)
    manager = start(tmp_path, config=LogConfig(segment_bytes=500))
    assert [log.log_end_offset for log in manager] == [200]
    manager.close()


def test_fsync_in_the_background_ends_with_the_directory(tmp_path: Path) -> None:
    manager = start(tmp_path, config=LogConfig(segment_bytes=200))
    log = manager.get_or_create("t", 0)
    send(log, 200)
    (home,) = manager.dirs
    assert log.flush_closed(), "a few at a time"
    assert 0 < log.flushed_offset < 100
    home.closing = True
    upkeep.flush_rolled(home)
    assert 0 < log.flushed_offset < 100
    manager.delete("t", 0)
    manager.remove_deleted()
    assert not home.rolled
    home.rolled.add(log)
    home.closing = False
    upkeep.flush_rolled(home)
    assert not home.rolled, "a log that was deleted meanwhile is no error"
    assert home.failure is None
    manager.close()


def test_a_stop_does_not_fsync_for_long(tmp_path: Path) -> None:
    manager = start(tmp_path, config=LogConfig(segment_bytes=200))
    send(manager.get_or_create("t", 0), 300)
    manager.close(sync_for_s=0.0)
    assert (tmp_path / ".kafka_cleanshutdown").read_text().startswith("version=0\nsynced=false\nlogs.3=")
    manager = start(tmp_path)
    assert manager.dirs[0].clean
    assert manager.dirs[0].rolled == set(manager), "what the last stop left is made up for"
    manager.close(sync_for_s=60)
    assert (tmp_path / ".kafka_cleanshutdown").read_text().startswith("version=0\nsynced=true\nlogs.3=")


def test_a_directory_that_fails(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    logs = [manager.get_or_create("t", partition) for partition in range(4)]
    told: list[LogDir] = []
    manager.watch(told.append)
    failed = manager.partitions()["t", 0]
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "No space left" in logs[0].failed(full).message
    assert (told, failed.failure) == ([], None), "a full disk is not a broken one"
    for _ in range(2):
        logs[0].failed(OSError(errno.EIO, "Input/output error"))
    assert told == [failed]
    there = [log for log in logs if log.directory.parent == failed.path]
    assert len(there) == 2
    for log in logs:
        assert (log.offline is not None) == (log in there)
    for refused in (
        lambda: send(there[1]),
        lambda: there[1].read(0, 1, upper=0, min_one=True),
        there[1].flush,
    ):
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            refused()
    assert len(manager.forget_directory(failed)) == 2
    assert list(manager.offline) == [failed.path]
    assert manager.forget_directory(failed) == []
    assert list(manager) == [log for log in logs if log not in there]
    for partition in range(4, 8):
        assert manager.get_or_create("t", partition).directory.parent != failed.path
    manager.close()
    assert not (failed.path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("suffix", ["", BY_ID])
@pytest.mark.parametrize(
    "name",
    ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"],
)
@pytest.mark.parametrize(
    "content", [None, b"", b"1\n0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0\n", b"0\n1\nt x y\n", b"\xff\xfe"]
)
def test_damaged_checkpoints(tmp_path: Path, name: str, suffix: str, content: bytes | None) -> None:
    """Kafka's file, and ours with the topic ids, which a start reads."""
    manager = start(tmp_path)
    send(manager.get_or_create("t", 0), 5)
    manager.close()
    path = tmp_path / f"{name}{suffix}"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=path.name):
            (load if suffix else read_offsets)(str(tmp_path / name))
    (tmp_path / ".boot-id").unlink()
    manager = start(tmp_path)
    assert [log.log_end_offset for log in manager] == [5]
    manager.close()


def test_log_start_offsets_are_kept(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0)
    send(log, 5)
    log.delete_records_before(3)
    manager.checkpoint()
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 3\n"
    kill(manager)
    manager = start(tmp_path)
    assert [log.log_start_offset for log in manager] == [3]
    manager.close()


def test_checkpoint_file_format(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert read_offsets(path) == {}
    write_offsets(path, {("a", 2): 0, ("a", 10): 7, ("b", 1): 5})
    assert Path(path).read_text() == "0\n3\na 2 0\na 10 7\nb 1 5\n"
    assert read_offsets(path) == {("a", 2): 0, ("a", 10): 7, ("b", 1): 5}


def test_new_partitions_go_where_there_are_fewest(tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(6):
        manager.get_or_create("t", partition)
    assert sorted(len(home.logs) for home in manager.dirs) == [3, 3]
    assert manager.get_or_create("t", 3) is manager.get("t", 3)
    manager.close()
    manager = start(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert len(manager) == 6
    assert manager.get_or_create("t", 6).directory == tmp_path / "c" / "t-6"
    manager.close()


def test_deletion(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log, 5)
    part = log.read(0, 100, upper=5, min_one=True)
    manager.delete("t", 0)
    manager.delete("t", 0)
    assert manager.get("t", 0) is None
    assert len(list(tmp_path.glob("t-0.*-delete"))) == 1
    assert manager.get_or_create("t", 0).log_end_offset == 0  # at once, under the same name
    manager.remove_deleted()
    assert list(tmp_path.glob("*-delete")) == []
    assert part is not None
    assert len(part.read()) == len(part)
    send(manager.get_or_create("t", 0))
    long = "x" * 249
    manager.get_or_create(long, 7)
    manager.delete(long, 7)
    kill(manager)
    manager = start(tmp_path)  # killed before it was removed
    assert len(manager) == 1
    assert len(list(tmp_path.glob("*-delete"))) == 1
    manager.remove_deleted()
    assert list(tmp_path.glob("*-delete")) == []
    manager.close()


class Interrupted(FileCache):
    """Calls a function when the n-th file is opened."""

    def __init__(self) -> None:
        super().__init__(1)  # a file is reopened each time
        self.left = -1
        self.what: Callable[[], None] = lambda: None

    def get(self, path: str, *, create: bool = False) -> OpenFile:
        self.left -= 1
        if self.left == 0:
            self.what()
        return super().get(path, create=create)


@pytest.mark.parametrize("removed", [False, True], ids=["moved", "removed"])
@pytest.mark.parametrize(
    "work",
    [Log.flush_closed, lambda log: log.offset_for_timestamp(NOW), Log.max_timestamp],
    ids=["flush", "by time", "latest"],
)
def test_a_log_is_deleted_while_a_thread_is_at_work(
    tmp_path: Path, work: Callable[[Log], object], removed: bool
) -> None:
    """Whichever file comes next, work on the log ends, and the disk counts as healthy."""
    moment, was_met = 1, True
    while was_met:
        files = Interrupted()
        manager = LogManager([tmp_path / f"{moment}"], LogConfig(segment_bytes=400), files=files)
        manager.lock()
        manager.start()
        (home,) = manager.dirs
        log = manager.get_or_create("t", 0, TOPIC_ID)
        send(log, 12)

        def delete(manager: LogManager = manager) -> None:
            manager.delete("t", 0)
            if removed:
                manager.remove_deleted()

        files.left, files.what = moment, delete
        with contextlib.suppress(ApiError):
            work(log)
        was_met = log.is_deleted
        files.left = -1
        assert home.failure is None
        manager.close()
        moment += 1
    assert moment > 2


@pytest.mark.parametrize("removed", [False, True], ids=["moved", "removed"])
@pytest.mark.parametrize(
    "work",
    [
        Log.flush,
        Log.flush_closed,
        lambda log: log.offset_for_timestamp(NOW),
        Log.max_timestamp,
        lambda log: send(log, 20),
        lambda log: log.read(0, 1, upper=12, min_one=True),
        lambda log: log.delete_records_before(8),
        lambda log: log.roll(now_ms=NOW),
        lambda log: log.delete_old_segments(NOW + 10**12),
    ],
    ids=["flush", "closed", "by time", "latest", "append", "read", "delete records", "roll", "retention"],
)
def test_a_deleted_log_is_no_failure_of_the_disk(
    tmp_path: Path, work: Callable[[Log], object], removed: bool
) -> None:
    manager = start(tmp_path, config=LogConfig(segment_bytes=400))
    (home,) = manager.dirs
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log, 12)
    manager.delete("t", 0)
    if removed:
        manager.remove_deleted()
    refusals = []
    try:
        work(log)
    except ApiError as error:
        refusals.append(error)
    except OSError as error:
        refusals.append(log.failed(error))
    assert {error.code for error in refusals} <= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    home.rolled.add(log)
    upkeep.flush_rolled(home)
    log.durability.flushed_ms = 0
    upkeep.flush_due(manager, NOW)
    manager.checkpoint()
    assert home.failure is None
    manager.close()


def test_a_log_is_deleted_while_a_flush_waits(tmp_path: Path) -> None:
    """The flush found the log usable, then had to wait for its lock."""
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log, 5)
    lock = log.durability.lock

    class Deletes:
        def __enter__(self) -> None:
            log.durability.lock = lock
            manager.delete("t", 0)
            manager.remove_deleted()
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()

    log.durability.lock = Deletes()  # type: ignore[assignment]
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        log.flush()
    assert manager.dirs[0].failure is None
    manager.close()


@pytest.fixture
def opened_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> FileCache:
    """A cache; another thread opens each file of a log right before the file or its folder is renamed."""
    files = FileCache()
    rename = os.rename

    def opening(source: Path | str, target: Path | str) -> None:
        path = Path(source)
        for one in sorted(path.glob("*.log")) if path.is_dir() else [path]:
            files.get(str(one))
        rename(source, target)

    monkeypatch.setattr(os, "rename", opening)
    return files


def test_a_file_is_opened_while_its_log_is_deleted(
    tmp_path: Path, opened_at_the_last_moment: FileCache
) -> None:
    """The new log of that name does not get the old file."""
    manager = LogManager([tmp_path], files=opened_at_the_last_moment)
    manager.lock()
    manager.start()
    send(manager.get_or_create("t", 0, TOPIC_ID), 5)
    manager.delete("t", 0)
    log = manager.get_or_create("t", 0, uuid.uuid4())
    manager.remove_deleted()
    send(log, 3)
    assert log.segments.size == (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    kill(manager)
    manager = start(tmp_path)
    assert [log.log_end_offset for log in manager] == [3]
    manager.close()


def test_a_file_is_opened_while_its_segment_is_compacted(
    tmp_path: Path, opened_at_the_last_moment: FileCache
) -> None:
    """The new segment does not get the old file."""
    manager = LogManager([tmp_path], LogConfig(cleanup_policy="compact"), files=opened_at_the_last_moment)
    manager.lock()
    manager.start()
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log, 5)
    log.roll(now_ms=NOW)
    compaction = Compaction(log, 5, now_ms=NOW)
    while compaction.work():
        assert compaction.commit()
    send(log, 1)
    assert [read_header(batch).base_offset for batch in log.batches_from(0)] == [4, 5]
    manager.close()


def test_background_work(tmp_path: Path) -> None:
    manager = start(tmp_path, config=LogConfig(retention_ms=1000, flush_ms=500))
    log = manager.get_or_create("t", 0)
    send(log, 5)
    assert sum(upkeep.enforce_retention(manager, NOW + 5000, lambda key: 4)) == 0
    upkeep.flush_due(manager, NOW)
    assert log.flushed_offset == 0
    upkeep.flush_due(manager, NOW + 500)
    assert log.flushed_offset == 5
    assert sum(upkeep.enforce_retention(manager, NOW + 5000, lambda key: 5)) == 1
    assert len(list((tmp_path / "t-0").glob("*.deleted"))) > 0
    manager.remove_deleted()
    assert list((tmp_path / "t-0").glob("*.deleted")) == []
    manager.close()


# -- messages to users ------------------------------------------------------------------------------------------


def refusal(*dirs: Path, broker_id: int = 1, cluster: str = "c1") -> str:
    with pytest.raises(LogDirError) as caught:
        start(*dirs, broker_id=broker_id, cluster=cluster)
    return str(caught.value)


def test_a_directory_in_use(tmp_path: Path) -> None:
    code = (
        "import sys; from millstream_broker.log.manager import LogManager;"
        "LogManager([sys.argv[1]]).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    message = refusal(tmp_path / "free", tmp_path)
    assert f"{tmp_path} is in use by another broker" in message
    assert "log.dirs" in message
    other.kill()
    other.communicate()
    manager = start(tmp_path / "free", tmp_path)  # the failed attempt left no lock behind
    manager.close()


def test_somebody_elses_data(tmp_path: Path) -> None:
    start(tmp_path).close()
    assert "belongs to broker.id=1, this is broker.id=2" in refusal(tmp_path, broker_id=2)
    assert "belongs to cluster c1, this is cluster c2" in refusal(tmp_path, cluster="c2")
    (tmp_path / "meta.properties").write_text("broker.id=one\n")
    assert "broker.id=one is not a number" in refusal(tmp_path)


def test_unusable_directories(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} cannot be used" in refusal(tmp_path / "file")
    assert "cannot be used" in refusal(tmp_path / "file" / "below")
    assert "/proc/millstream cannot be used" in refusal(Path("/proc/millstream"))
    with pytest.raises(LogDirError):
        LogManager([])


def test_one_partition_in_two_directories(tmp_path: Path) -> None:
    manager = start(tmp_path / "a")
    manager.get_or_create("t", 0)
    manager.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert "hold the same partition" in refusal(tmp_path / "a", tmp_path / "b")


def test_strange_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "my notes").mkdir()
    manager = start(tmp_path)
    assert len(manager) == 0
    manager.close()
    assert (tmp_path / "my notes").exists()


def test_a_folder_that_was_made_without_its_id_gets_it(tmp_path: Path) -> None:
    """The broker died after it had created the folder: the folder belongs to the next topic that needs it."""
    (tmp_path / "t-0").mkdir()
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log)
    assert log.topic_id == TOPIC_ID
    kill(manager)
    manager = start(tmp_path)
    found = manager.get("t", 0)
    assert found is not None
    assert found.topic_id == TOPIC_ID
    manager.close()
