"""Producer snapshots of ended segments when there are many producers: the flushing thread writes them.

Each describes the end of its segment, even if the log has grown since.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_broker.log import log as log_module
from millstream_broker.log import upkeep
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_broker.log.producer_state import ProducerStateManager
from millstream_harness import log_dirs
from millstream_harness.log_dirs import NOW
from millstream_kafka.batch import Record, build_batch, read_header
from millstream_kafka.protocol.errors import ApiError


def send(log: Log, sequence: int, producer: int = 7) -> AppendInfo:
    batch = build_batch(
        [Record(b"k", b"v", NOW)], producer_id=producer, producer_epoch=0, base_sequence=sequence
    )
    return log.append(batch, leader_epoch=0, now_ms=NOW)


def snapshots(log: Log) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    manager = log_dirs.start(tmp_path)
    yield manager
    manager.unlock()


@pytest.fixture(autouse=True)
def one_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SAVED_AT_ONCE", 0)


@pytest.fixture
def log(manager: LogManager) -> Log:
    """A closed segment of three records, and one more record after it."""
    log = manager.get_or_create("t", 0)
    for sequence in range(3):
        send(log, sequence)
    log.roll(now_ms=NOW)
    send(log, 3)
    return log


def test_the_end_of_a_segment_writes_nothing_that_grows_with_its_producers(
    manager: LogManager, log: Log
) -> None:
    assert snapshots(log) == []
    upkeep.flush_rolled(manager.dirs[0])
    assert snapshots(log) == [3]


def test_a_snapshot_has_the_state_of_its_offset(manager: LogManager, log: Log) -> None:
    send(log, 0, producer=8)
    upkeep.flush_rolled(manager.dirs[0])
    stored = ProducerStateManager.decode((log.directory / f"{3:020d}.snapshot").read_bytes())
    assert {known: producer.last.last_offset for known, producer in stored.by_id.items()} == {7: 2}
    assert log.producers.by_id[7].last.last_offset == 3


def test_those_of_few_producers_are_written_at_once(
    manager: LogManager, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SAVED_AT_ONCE", 1)
    log.roll(now_ms=NOW)
    assert snapshots(log) == [4]


def test_each_ended_segment_has_its_own(manager: LogManager, log: Log) -> None:
    for sequence in range(4, 8):
        log.roll(now_ms=NOW)
        send(log, sequence)
    upkeep.flush_rolled(manager.dirs[0])
    assert snapshots(log) == [3, 4, 5, 6, 7]
    for offset in snapshots(log):
        state = ProducerStateManager.decode((log.directory / f"{offset:020d}.snapshot").read_bytes())
        assert state.by_id[7].last.last_offset == offset - 1


def test_what_is_frozen_stays_while_producers_send_expire_and_come(tmp_path: Path) -> None:
    producers = ProducerStateManager()

    def update(producer: int, sequence: int) -> None:
        batch = build_batch(
            [Record(b"k", b"v", NOW)],
            base_offset=sequence,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        )
        producers.update(read_header(batch), NOW)

    for producer in range(3):
        update(producer, 0)
    first, encoded = producers.frozen(), producers.encode()
    update(0, 1)
    update(0, 2)
    second, encoded_then = producers.frozen(), producers.encode()
    update(0, 3)
    update(1, 1)
    update(9, 0)
    producers.expire(NOW + 1)
    assert (first.encode(), second.encode()) == (encoded, encoded_then)
    assert producers.by_id == {}


def test_a_kill_before_it_is_written_loses_nothing(tmp_path: Path, manager: LogManager, log: Log) -> None:
    log_dirs.kill(manager)
    assert snapshots(log) == []
    again = log_dirs.start(tmp_path)
    restored = again.get("t", 0)
    assert restored is not None
    assert send(restored, 2).duplicate
    assert send(restored, 4).first_offset == 4
    again.unlock()


def test_a_clean_stop_writes_what_is_left(manager: LogManager, log: Log) -> None:
    manager.close()
    assert snapshots(log) == [3, 4]


def test_segments_stay_until_the_snapshot_behind_them_is_written(
    tmp_path: Path, manager: LogManager, log: Log
) -> None:
    """Otherwise a kill would lose producers whose records retention has removed."""
    log.delete_records_before(4)
    assert (log.log_start_offset, log.segments.first_offset) == (4, 0)
    assert log.delete_old_segments(NOW) == 0
    upkeep.flush_rolled(manager.dirs[0])
    assert log.delete_old_segments(NOW) == 1
    assert log.segments.first_offset == 3
    log_dirs.kill(manager)
    again = log_dirs.start(tmp_path)
    restored = again.get("t", 0)
    assert restored is not None
    assert send(restored, 2).duplicate
    again.unlock()


def test_one_that_cannot_be_written_does_not_keep_retention_from_making_room(
    manager: LogManager, log: Log
) -> None:
    log.delete_records_before(3)
    with log_dirs.full_disk(), pytest.raises(ApiError):
        log.flush_closed()
    assert (snapshots(log), log.offline) == ([], None)
    assert log.delete_old_segments(NOW) == 1
    log.roll(now_ms=NOW)
    upkeep.flush_rolled(manager.dirs[0])
    assert snapshots(log) == [4]


@pytest.mark.parametrize(("offset", "left"), [(4, [3]), (3, [3]), (2, []), (0, [])])
def test_a_truncation_takes_those_behind_it(
    manager: LogManager, log: Log, offset: int, left: list[int]
) -> None:
    log.truncate_to(offset, now_ms=NOW)
    upkeep.flush_rolled(manager.dirs[0])
    assert snapshots(log) == left


def test_a_log_started_anew_has_none(manager: LogManager, log: Log) -> None:
    log.truncate_fully_and_start_at(50, now_ms=NOW)
    upkeep.flush_rolled(manager.dirs[0])
    assert snapshots(log) == []


def test_nothing_is_written_into_the_folder_of_a_deleted_log(manager: LogManager, log: Log) -> None:
    """Otherwise its removal would find a folder that is not empty."""
    manager.delete("t", 0)
    log.durability.save_producers()
    assert snapshots(log) == []


def test_they_are_written_by_a_thread_while_segments_end(
    manager: LogManager, log: Log, no_fsync: None
) -> None:
    ended = threading.Event()

    def flush() -> None:
        while not ended.is_set():
            upkeep.flush_rolled(manager.dirs[0])

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for sequence in range(4, 304):
            send(log, sequence)
            log.roll(now_ms=NOW)
    finally:
        ended.set()
        thread.join()
    upkeep.flush_rolled(manager.dirs[0])
    assert snapshots(log) == [3, *range(5, 305)]
    assert os.path.exists(log.segments.active.path())
