"""One log directory: its lock, owner, shutdown markers, and failures."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import uuid
from pathlib import Path

import pytest

from millstream_broker.log import checkpoints, directory
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import BrokenDirError, LogDir, LogDirError
from millstream_broker.log.log import Log
from millstream_harness.log_dirs import send

TOPIC_ID = uuid.UUID(int=1)
IO_ERROR = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def home(tmp_path: Path) -> LogDir:
    """A directory locked and marked as broker 1's, of cluster c1."""
    home = LogDir(tmp_path)
    home.lock()
    home.identify(1, "c1")
    return home


def with_logs(home: LogDir, count: int, *, config: LogConfig | None = None) -> list[Log]:
    logs = []
    for partition in range(count):
        path = home.path / f"t-{partition}"
        logs.append(Log.open(path, config or LogConfig(), clean=True, home=home, topic_id=TOPIC_ID))
        home.add(("t", partition), logs[-1])
    return logs


def refusal(home: LogDir, content: str) -> str:
    """The refusal of a directory with these properties."""
    home.path.mkdir(exist_ok=True)
    (home.path / "meta.properties").write_text(content)
    try:
        home.lock()
        home.identify(1, "c1")
    except LogDirError as error:
        return str(error)
    finally:
        home.unlock()
    raise AssertionError("it was not refused")


# -- failures -----------------------------------------------------------------------------------------------------


def test_a_failure_takes_every_log_and_is_told_once(home: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    logs = with_logs(home, 2)
    told: list[LogDir] = []
    home.on_failure = told.append
    home.fail(IO_ERROR)
    home.fail(OSError(errno.EROFS, "Read-only file system"))
    assert (home.failure, told) == (IO_ERROR, [home])
    assert caplog.messages == [
        f"log.dirs: {home.path} is offline until a restart, with its 2 partitions: Input/output error"
    ]
    assert [log.offline for log in logs] == [IO_ERROR, IO_ERROR]
    (late,) = with_logs(home, 1)
    assert late.offline is IO_ERROR, "it was being opened as the directory failed"


def test_a_log_of_a_sound_directory_is_online(home: LogDir) -> None:
    assert [log.offline for log in with_logs(home, 1)] == [None]


def test_only_failures_of_the_disk_count(home: LogDir) -> None:
    home.check(OSError(errno.ENOSPC, "No space left on device"))
    assert home.failure is None
    home.check(IO_ERROR)
    assert home.failure is IO_ERROR


# -- the lock -----------------------------------------------------------------------------------------------------


def test_the_lock_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    first, second = LogDir(tmp_path / "made" / "below"), LogDir(tmp_path / "made" / "below")
    assert not first.is_locked
    first.lock()
    assert first.is_locked
    with pytest.raises(LogDirError, match=f"log.dirs: {first.path} is in use by another broker"):
        second.lock()
    assert not second.is_locked
    first.unlock()
    first.unlock()
    assert not first.is_locked
    second.lock()
    second.unlock()


def test_others_can_try_the_lock(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        home = LogDir(tmp_path)
        home.lock()
    finally:
        os.umask(umask)
    with (tmp_path / ".lock").open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o644
    home.unlock()


def test_an_unreadable_identity_lets_go_of_the_lock(tmp_path: Path) -> None:
    home = LogDir(tmp_path)
    (tmp_path / "meta.properties").mkdir()
    with pytest.raises(BrokenDirError, match=r"meta\.properties cannot be read: Is a directory"):
        home.lock()
    assert not home.is_locked
    (tmp_path / "meta.properties").rmdir()
    (tmp_path / "meta.properties").write_bytes(b"broker.id=\xff\n")
    with pytest.raises(LogDirError, match=f"Restore it, or move {tmp_path} away") as caught:
        home.lock()
    assert not isinstance(caught.value, BrokenDirError), "the disk is in order"
    assert not home.is_locked


# -- ownership ----------------------------------------------------------------------------------------------------


def test_a_new_directory_is_marked(home: LogDir) -> None:
    text = "version=0\nbroker.id=1\ncluster.id=c1\n"
    assert (home.path / "meta.properties").read_text() == text
    assert (home.broker_id, home.cluster_id) == (1, "c1")
    home.identify(1, "c1")
    home.unlock()
    again = LogDir(home.path)
    again.lock()
    assert (again.broker_id, again.cluster_id, again.directory_id) == (1, "c1", "")
    again.identify(1, "c1")
    assert (home.path / "meta.properties").read_text() == text
    again.unlock()


def test_a_directory_of_somebody_else_is_refused_with_its_owner(tmp_path: Path) -> None:
    home = LogDir(tmp_path / "a")
    message = refusal(home, "version=0\nbroker.id=2\ncluster.id=c1\n")
    assert f"log.dirs: {home.path} belongs to broker.id=2, this is broker.id=1." in message
    message = refusal(home, "version=0\nnode.id=2\ncluster.id=c1\n")
    assert f"log.dirs: {home.path} belongs to broker.id=2, this is broker.id=1." in message
    message = refusal(home, "version=0\nbroker.id=1\ncluster.id=c2\n")
    assert f"log.dirs: {home.path} belongs to cluster c2, this is cluster c1." in message
    assert refusal(home, "broker.id=one\n") == f"{home.path}/meta.properties: broker.id=one is not a number"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# broker.id=2\n",
        "broker.id=\n",
        "cluster.id=c1\n",
        "broker.id=1\n",
        " broker.id = 1 \nnonsense\n",
    ],
)
def test_what_is_missing_is_added(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    home = LogDir(tmp_path)
    home.lock()
    home.identify(1, "c1")
    assert (home.broker_id, home.cluster_id) == (1, "c1")
    assert (tmp_path / "meta.properties").read_text() == "version=0\nbroker.id=1\ncluster.id=c1\n"
    home.unlock()


def test_a_mark_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    home = LogDir(tmp_path)
    home.lock()
    (tmp_path / "meta.properties.tmp").mkdir()
    with pytest.raises(
        LogDirError,
        match=re.escape(f"log.dirs: {tmp_path}/meta.properties cannot be written: Is a directory. Make"),
    ):
        home.identify(1, "c1")
    home.unlock()


def test_a_directory_gets_an_id_of_its_own_once(home: LogDir) -> None:
    made = home.own_id()
    assert len(made) == 22
    assert home.directory_id == made
    text = f"version=0\nbroker.id=1\ncluster.id=c1\ndirectory.id={made}\n"
    assert (home.path / "meta.properties").read_text() == text
    home.unlock()
    again = LogDir(home.path)
    again.lock()
    assert again.directory_id == again.own_id() == made
    assert (home.path / "meta.properties").read_text() == text
    again.unlock()


# -- state at the last stop -----------------------------------------------------------------------------------------


def marks(
    tmp_path: Path, *, marker: str = "", boot: str = "", generation: str = "", known: int | None = None
) -> LogDir:
    """The marks of a directory that had a generation, read in the boot "now"."""
    for name, text in ((".kafka_cleanshutdown", marker), (".boot-id", boot), (".generation", generation)):
        if text:
            (tmp_path / name).write_text(text)
    home = LogDir(tmp_path, directory_id="d1")
    home.read_marks("now", {} if known is None else {"d1": known, "d2": 1000})
    return home


@pytest.mark.parametrize(
    ("marker", "boot", "clean", "same_boot"),
    [
        ("", "", False, False),
        ("", "now\n", False, True),
        ("version=0\n", "now", True, True),
        ("garbage\n# version=0\n", "now", False, True),
        ("version=0\n", "before", False, False),
        ("version=0\nsynced=true\n", "before", True, False),
        ("version=0\nsynced=false\n", "before", False, False),
        ("version=0\nsynced=false\n", "now", True, True),
    ],
)
def test_a_stop_was_clean_if_everything_is_on_the_disk_or_in_the_page_cache(
    tmp_path: Path, marker: str, boot: str, clean: bool, same_boot: bool
) -> None:
    home = marks(tmp_path, marker=marker, boot=boot)
    assert (home.clean, home.same_boot, home.is_older_copy) == (clean, same_boot, False)


def test_where_the_system_tells_no_boot_none_is_the_same(tmp_path: Path) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_text("version=0\n")
    home = LogDir(tmp_path)
    home.read_marks("", {})
    assert (home.clean, home.same_boot) == (False, False)


@pytest.mark.parametrize(("text", "generation"), [("", None), ("7\n", 7), ("0", 0), ("-1", 0), ("seven", 0)])
def test_a_generation_that_is_no_number_counts_as_none_at_all(
    tmp_path: Path, text: str, generation: int | None
) -> None:
    assert marks(tmp_path, generation=text).generation == generation


@pytest.mark.parametrize(
    ("generation", "known", "is_older"),
    [
        ("7", 7, False),
        ("7", 8, True),
        ("8", 7, False),
        ("", 1, True),
        ("", 0, False),
        ("0", 1, True),
        ("", None, False),
    ],
)
@pytest.mark.parametrize(("marker", "boot"), [("version=0\nsynced=true\n", "before"), ("", "now")])
def test_an_older_copy_is_one_behind_its_generation(
    tmp_path: Path, marker: str, boot: str, generation: str, known: int | None, is_older: bool
) -> None:
    """Its marks claim that nothing was lost, but they date from an earlier time."""
    home = marks(tmp_path, marker=marker, boot=boot, generation=generation, known=known)
    assert home.is_older_copy == is_older
    assert (home.clean, home.same_boot) == ((False, False) if is_older else (bool(marker), boot == "now"))


def test_where_something_was_lost_anyway_it_is_no_copy(tmp_path: Path) -> None:
    assert not marks(tmp_path, boot="before", generation="7", known=8).is_older_copy


@pytest.mark.parametrize(
    ("marker", "boot", "generation"),
    [
        ("", "before", "0"),
        ("", "now", "7"),
        ("version=0\nsynced=true\n", "before", "7"),
        ("version=0\nsynced=false\n", "now", "7"),
    ],
)
def test_a_directory_in_use_has_the_marks_of_a_kill(
    tmp_path: Path, marker: str, boot: str, generation: str
) -> None:
    """From then on, nothing trusts a directory that may have lost data."""
    home = marks(tmp_path, marker=marker, boot=boot, generation="7")
    home.mark_in_use("now")
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / ".boot-id").read_text() == "now"
    assert (tmp_path / ".generation").read_text().strip() == generation


def test_a_generation_is_written_with_or_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[object] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    home = LogDir(tmp_path)
    home.write_generation(7, sync=False)
    assert (home.generation, synced) == (7, [])
    home.write_generation(8, sync=True)
    assert len(synced) == 2
    assert marks(tmp_path).generation == home.generation == 8


@pytest.mark.parametrize("synced", [True, False])
def test_a_clean_stop_says_whether_everything_was_fsynced(tmp_path: Path, synced: bool) -> None:
    LogDir(tmp_path).mark_clean(synced=synced)
    assert marks(tmp_path, boot="before").clean == synced


# -- checkpoints --------------------------------------------------------------------------------------------------


def test_checkpoints_say_how_far_each_log_is(home: LogDir) -> None:
    moved, plain = with_logs(home, 2, config=LogConfig(cleanup_policy="compact,delete"))
    for log in (moved, plain):
        send(log, 5)
    moved.flush()
    moved.delete_records_before(3)
    moved.first_dirty_offset = 2
    plain.config = LogConfig()
    home.checkpoint()
    home.write_high_watermarks({("t", 0): (TOPIC_ID, 4)})
    again = LogDir(home.path)
    again.load_checkpoints()
    assert again.checkpointed(("t", 0), TOPIC_ID) == {
        checkpoints.RECOVERY_POINTS: 5,
        checkpoints.LOG_START_OFFSETS: 3,
        checkpoints.CLEANER_OFFSETS: 2,
        checkpoints.HIGH_WATERMARKS: 4,
    }
    assert again.checkpointed(("t", 1), TOPIC_ID) == {checkpoints.RECOVERY_POINTS: 0}
    assert again.checkpointed(("t", 2), TOPIC_ID) == {}
    home.unlock()


def test_checkpoints_are_on_the_disk_when_they_are_written(
    home: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_logs(home, 1)
    synced: list[object] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    home.checkpoint()
    assert len(synced) == 3 * 2, "three files and their names"
    home.unlock()


def test_high_watermarks_are_written_when_they_have_changed(
    home: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fsync, because a follower recovers without them."""
    path = home.path / checkpoints.HIGH_WATERMARKS
    synced: list[object] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for offset, is_written in ((4, True), (4, False), (5, True)):
        path.unlink(missing_ok=True)
        home.write_high_watermarks({("t", 0): (TOPIC_ID, offset)})
        assert path.exists() == is_written
    assert synced == []
    home.unlock()


def test_entries_without_topic_ids_get_them_as_soon_as_the_logs_are_open(home: LogDir) -> None:
    first, second = with_logs(home, 2)
    for log in (first, second):
        send(log, 5)
    first.last_high_watermark = 4
    checkpoints.write_offsets(str(home.path / checkpoints.RECOVERY_POINTS), {("t", 0): 1})
    home.load_checkpoints()
    assert not home.is_identified
    home.opened()
    assert home.is_identified
    found = checkpoints.load(str(home.path / checkpoints.HIGH_WATERMARKS))
    assert (found.offsets, found.applies(("t", 0), TOPIC_ID)) == ({("t", 0): 4}, True)
    assert checkpoints.load(str(home.path / checkpoints.RECOVERY_POINTS)).topic_ids is not None
    home.unlock()


def test_entries_with_topic_ids_are_not_written_anew_at_a_start(home: LogDir) -> None:
    with_logs(home, 1)
    home.checkpoint()
    home.load_checkpoints()
    assert home.is_identified
    (home.path / checkpoints.RECOVERY_POINTS).unlink()
    home.opened()
    assert not (home.path / checkpoints.RECOVERY_POINTS).exists()
    assert home.checkpointed(("t", 0), TOPIC_ID) == {}, "what the last broker wrote counts no longer"
    home.unlock()


def test_a_checkpoint_that_cannot_be_read_is_done_without(
    home: LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    path = home.path / checkpoints.RECOVERY_POINTS
    path.write_text("1\n")
    checkpoints.write_offsets(str(home.path / checkpoints.CLEANER_OFFSETS), {("t", 0): 3})
    home.load_checkpoints()
    assert home.checkpointed(("t", 0), TOPIC_ID) == {checkpoints.CLEANER_OFFSETS: 3}
    (message,) = caplog.messages
    assert message.startswith(f"{path}: expected")
    assert message.endswith("continuing without it: the start reads more of the logs")
    home.unlock()


def test_an_error_is_told_in_its_own_words() -> None:
    assert directory.describe(IO_ERROR) == "Input/output error"
    assert directory.describe(OSError("without a number")) == "without a number"
