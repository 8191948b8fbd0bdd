"""The notes of a clean stop about each log: a start uses them for unchanged logs and reads all others."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.log import recovery, summaries
from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import BOOT_ID
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_broker.log.transaction_index import AbortedTransaction
from millstream_harness.log_dirs import NOW, block, kill, send, start
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.control_batch import EndTransactionMarker, build_marker

TOPIC_ID = uuid.UUID("c5db41bf-48d3-41db-be1b-a6a230589398")
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def filled(manager: LogManager, name: str = "t") -> Log:
    """A log with several segments, producers, epochs and timestamps; its first records are deleted."""
    log = manager.get_or_create(name, 0, TOPIC_ID)
    for number in range(60):
        batch = build_batch(
            [record(f"{name}-{number}", timestamp=NOW + number)],
            producer_id=7 + number % 3,
            producer_epoch=0,
            base_sequence=number // 3,
        )
        log.append(bytearray(batch), leader_epoch=number // 20, now_ms=NOW + number)
    log.delete_records_before(5)
    assert len(log.segments) > 2
    return log


def state(log: Log) -> dict[str, Any]:
    return {
        "id": log.topic_id,
        "range": (log.log_start_offset, log.log_end_offset),
        "epochs": log.epochs.entries,
        "producers": log.producers.encode(),
        "segments": [(one.base_offset, one.size, one.max_timestamp) for one in log.segments],
        "batches": list(log.batches_from(log.log_start_offset)),
        "found": [log.offset_for_timestamp(NOW + number) for number in range(0, 61, 7)],
    }


@pytest.fixture
def read_folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the folders that were read."""
    folders: list[str] = []
    load = recovery.load

    def loaded(path: str, *args: Any, **more: Any) -> Any:
        folders.append(os.path.basename(path))
        return load(path, *args, **more)

    monkeypatch.setattr(recovery, "load", loaded)
    return folders


def only(manager: LogManager) -> Log:
    (log,) = manager
    return log


def test_a_log_opened_from_its_summary_is_as_it_was(tmp_path: Path, read_folders: list[str]) -> None:
    manager = start(tmp_path, config=CONFIG)
    before = state(filled(manager))
    assert read_folders == ["t-0"]
    manager.close()
    manager = start(tmp_path, config=CONFIG)
    assert read_folders == ["t-0"], "its folder was not read"
    assert state(only(manager)) == before
    assert only(manager).flushed_offset == 60, "a clean stop fsyncs"
    manager.close()
    (tmp_path / summaries.FILE_NAME).unlink()
    manager = start(tmp_path, config=CONFIG)
    assert read_folders == ["t-0"] * 2
    assert state(only(manager)) == before
    manager.close()


def test_it_grows_as_one_whose_folder_was_read(tmp_path: Path, read_folders: list[str]) -> None:
    """The same holds for both indexes, over several starts."""
    grown = []
    for name, keeps in (("a", True), ("b", False)):
        manager = start(tmp_path / name, config=CONFIG)
        filled(manager)
        for number in range(4):
            manager.close()
            if not keeps:
                (tmp_path / name / summaries.FILE_NAME).unlink()
            manager = start(tmp_path / name, config=CONFIG)
            send(only(manager), 3 + number)
        log = only(manager)
        for offset in range(log.log_start_offset, log.log_end_offset):
            assert (found := log.read(offset, 1, upper=log.log_end_offset, min_one=True)) is not None
            assert int.from_bytes(found.read()[:8], "big") == offset
        grown.append({**state(log), "producers": None})
        manager.close()
    assert grown[0] == grown[1]
    assert read_folders == ["t-0"] * 6, "one is new in each, and four times one was read"


def test_a_log_without_records_is_opened_from_its_summary(tmp_path: Path, read_folders: list[str]) -> None:
    manager = start(tmp_path)
    manager.get_or_create("t", 0, TOPIC_ID)
    manager.close()
    for _ in range(2):
        manager = start(tmp_path)
        log = only(manager)
        assert (log.log_end_offset, log.size, log.topic_id) == (0, 0, TOPIC_ID)
        manager.close()
    assert read_folders == ["t-0"]


def append_a_byte(folder: Path) -> None:
    with sorted(folder.glob("*.log"))[-1].open("ab") as file:
        file.write(b"x")


def rewrite(folder: Path) -> None:
    path = sorted(folder.glob("*.log"))[0]
    data = path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))  # file timestamps are coarse


def move_away_and_back(folder: Path) -> None:
    index = sorted(folder.glob("*.index"))[0]
    index.rename(folder / "moved")
    (folder / "moved").rename(index)
    os.utime(folder, ns=(1, 1))


def remove_a_segment(folder: Path) -> None:
    for path in folder.glob(f"{sorted(folder.glob('*.log'))[-1].stem}.*"):
        path.unlink()
    os.utime(folder, ns=(1, 1))


@pytest.mark.parametrize("change", [append_a_byte, rewrite, move_away_and_back, remove_a_segment])
def test_a_log_that_was_changed_since_is_read(
    tmp_path: Path, read_folders: list[str], change: Callable[[Path], None]
) -> None:
    manager = start(tmp_path, config=CONFIG)
    for name in ("same", "changed"):
        filled(manager, name)
    manager.close()
    read_folders.clear()
    change(tmp_path / "changed-0")
    manager = start(tmp_path, config=CONFIG)
    assert read_folders == ["changed-0"]
    log = manager.get("changed", 0)
    assert log is not None
    assert log.log_end_offset == sum(1 for _ in log.batches_from(5)) + 5
    manager.close()


def test_a_log_whose_producers_cannot_be_read_is_read(tmp_path: Path, read_folders: list[str]) -> None:
    manager = start(tmp_path, config=CONFIG)
    before = state(filled(manager))
    manager.close()
    snapshot = tmp_path / "t-0" / f"{60:020d}.snapshot"
    snapshot.write_bytes(b"damaged")
    manager = start(tmp_path, config=CONFIG)
    assert read_folders == ["t-0"] * 2
    assert {**state(only(manager)), "producers": None} == {**before, "producers": None}
    assert set(only(manager).producers.by_id) == {7, 8, 9}
    manager.close()


def with_aborted(manager: LogManager) -> Log:
    """A log with an aborted transaction in each of several segments."""
    log = manager.get_or_create("t", 0, TOPIC_ID)
    for number in range(60):
        verifications = log.producers.verifications
        verifications.verified(verifications.begin(7, 0, number, bumps_epoch=False))
        batch = build_batch(
            [record("v", timestamp=NOW)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        log.append(bytearray(batch), leader_epoch=0, now_ms=NOW, origin=AppendOrigin.TRANSACTION)
        ending = EndTransactionMarker(committed=number % 2 == 0, coordinator_epoch=0)
        marker = build_marker(ending, producer_id=7, producer_epoch=0, timestamp=NOW)
        log.append(bytearray(marker), leader_epoch=0, now_ms=NOW, origin=AppendOrigin.MARKER)
    assert len(log.segments.aborted.bases) > 2
    return log


def aborted(log: Log) -> list[AbortedTransaction]:
    """What readers of committed records get."""
    return log.segments.aborted.collect(0, 0, log.log_end_offset)


def cut(path: Path) -> None:
    """To a whole number of entries: nothing in the file shows it."""
    os.truncate(path, path.stat().st_size - 34)


def cut_within_an_entry(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(1, 1))  # file timestamps are coarse


@pytest.mark.parametrize("is_same_boot", [True, False], ids=["same boot", "another boot"])
@pytest.mark.parametrize("harm", [Path.unlink, cut, cut_within_an_entry, empty, overwrite])
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "second", "last"])
def test_a_transaction_index_that_was_harmed_after_the_stop_is_written_again(
    tmp_path: Path,
    harm: Callable[[Path], None],
    which: int,
    is_same_boot: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Readers of committed records would get aborted ones: a log without such a file may be whole."""
    manager = start(tmp_path, config=CONFIG)
    before = aborted(with_aborted(manager))
    assert len(before) == 30
    manager.close()
    harm(sorted((tmp_path / "t-0").glob("*.txnindex"))[which])
    if not is_same_boot:
        (tmp_path / BOOT_ID).write_text("another")
    manager = start(tmp_path, config=CONFIG)
    assert manager.dirs[0].clean
    assert aborted(only(manager)) == before
    assert "the transaction index is damaged" in caplog.text
    manager.close()
    caplog.clear()
    manager = start(tmp_path, config=CONFIG)
    assert aborted(only(manager)) == before
    assert "the transaction index is damaged" not in caplog.text
    manager.close()


def test_summaries_count_for_one_start(tmp_path: Path, read_folders: list[str]) -> None:
    manager = start(tmp_path, config=CONFIG)
    filled(manager)
    manager.close()
    kept = (tmp_path / summaries.FILE_NAME).read_bytes()
    manager = start(tmp_path, config=CONFIG)
    assert not (tmp_path / summaries.FILE_NAME).exists()
    read_folders.clear()
    kill(manager)
    (tmp_path / summaries.FILE_NAME).write_bytes(kept)
    manager = start(tmp_path, config=CONFIG)
    assert read_folders == ["t-0"], "there is no marker of a clean stop"
    manager.close()


def test_summaries_of_another_stop_do_not_count(
    tmp_path: Path, read_folders: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path, config=CONFIG)
    filled(manager)
    manager.close()
    before = (tmp_path / summaries.FILE_NAME).read_bytes()
    manager = start(tmp_path, config=CONFIG)
    send(only(manager))
    manager.close()
    (tmp_path / summaries.FILE_NAME).write_bytes(before)
    read_folders.clear()
    manager = start(tmp_path, config=CONFIG)
    assert read_folders == ["t-0"]
    assert f"{tmp_path}/.clean-logs is not from the last clean stop: reading the logs instead" in caplog.text
    assert only(manager).log_end_offset == 61
    manager.close()


def test_a_stop_without_summaries_is_a_clean_one(
    tmp_path: Path, read_folders: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path, config=CONFIG)
    filled(manager)
    block(tmp_path / summaries.FILE_NAME)
    manager.close()
    assert (
        f"{tmp_path}: cannot write .clean-logs, so the next start takes longer: Is a directory"
        in caplog.messages
    )
    manager = start(tmp_path, config=CONFIG)
    assert manager.dirs[0].clean
    assert read_folders == ["t-0"] * 2
    manager.close()


def test_an_older_copy_of_the_directory_is_read(tmp_path: Path, read_folders: list[str]) -> None:
    """Its notes about itself no longer hold."""
    manager = start(tmp_path, config=CONFIG)
    filled(manager)
    (home,) = manager.dirs
    home.own_id()
    home.write_generation(3, sync=False)
    manager.close()
    read_folders.clear()
    manager = LogManager([tmp_path], CONFIG)
    manager.lock()
    manager.identify(1, "c1")
    manager.start({home.directory_id: 4})
    assert read_folders == ["t-0"]
    manager.close()


def test_snapshots_of_producers_do_not_gather(tmp_path: Path) -> None:
    manager = start(tmp_path, config=LogConfig())
    send(manager.get_or_create("t", 0, TOPIC_ID))
    for number in range(1, 4):
        manager.close()
        assert [one.name for one in (tmp_path / "t-0").glob("*.snapshot")] == [f"{number:020d}.snapshot"]
        written = (tmp_path / "t-0").stat().st_mtime_ns
        manager = start(tmp_path, config=LogConfig())
        manager.close()
        assert (tmp_path / "t-0").stat().st_mtime_ns == written, "a log without changes is left as it is"
        manager = start(tmp_path, config=LogConfig())
        send(only(manager))
    manager.close()


def test_a_truncated_log_is_closed_with_the_producers_that_it_has(tmp_path: Path) -> None:
    """Its end is the same as before."""
    manager = start(tmp_path, config=CONFIG)
    filled(manager)
    manager.close()
    manager = start(tmp_path, config=CONFIG)
    log = only(manager)
    log.truncate_to(59, now_ms=NOW)
    send(log)
    assert log.log_end_offset == 60
    before = state(log)
    manager.close()
    manager = start(tmp_path, config=CONFIG)
    assert state(only(manager)) == before
    manager.close()


def test_what_a_compaction_left_is_tidied_up(tmp_path: Path, read_folders: list[str]) -> None:
    config = LogConfig(cleanup_policy="compact")
    for left in (None, tmp_path / "t-0" / f"{0:020d}.log.cleaned", None):
        manager = start(tmp_path, config=config)
        send(manager.get_or_create("t", 0, TOPIC_ID))
        if left is not None:
            left.write_bytes(b"half a segment")
        manager.close()
    assert read_folders == ["t-0"] * 2, "when it was made, and after the second stop"
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


def test_a_log_that_failed_has_no_summary(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = manager.get_or_create("t", 0, TOPIC_ID)
    send(log)
    log.segments.active.size += 1
    assert summaries.of(log) is None, "its file has another size"
    log.segments.active.size -= 1
    os.unlink(log.segments.active.path())
    assert summaries.of(log) is None
    manager.unlock()
