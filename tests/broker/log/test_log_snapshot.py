"""A thread reads a log while the loop changes it: it gets the whole state at its start, or an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.compaction import Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch, iter_batches
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
COUNT = 60


def append(log: Log, count: int) -> None:
    for _ in range(count):
        offset = log.log_end_offset
        batch = build_batch([Record(b"k%d" % (offset % 3), b"v%d" % offset, NOW)])
        log.append(batch, leader_epoch=0, now_ms=NOW)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with more segments than the cache keeps open."""
    log = Log.open(tmp_path / "t-0", CONFIG, clean=True, files=FileCache(3), now_ms=NOW)
    append(log, COUNT)
    assert len(log.segments) > 6
    return log


def compact(log: Log) -> None:
    log.config = replace(CONFIG, cleanup_policy="compact", segment_bytes=2000)
    log.roll(now_ms=NOW)
    compaction = Compaction(log, log.log_end_offset, now_ms=NOW)
    while compaction.work():
        assert compaction.commit()
    compaction.finish()


def retain(log: Log) -> None:
    log.config = replace(CONFIG, retention_ms=1)
    assert log.delete_old_segments(NOW + 1000) > 5


def delete(log: Log) -> None:
    log.move(log.directory.with_name("t-0.gone-delete"))
    log.delete()


def delete_and_make_anew(log: Log) -> None:
    folder = log.directory
    delete(log)
    append(Log.open(folder, CONFIG, clean=True, now_ms=NOW), 2 * COUNT)


CHANGES: dict[str, Callable[[Log], object]] = {
    "append and roll": lambda log: append(log, 50),
    "compaction": compact,
    "retention": retain,
    "DeleteRecords": lambda log: log.delete_records_before(COUNT - 5),
    "deletion": delete,
    "made anew": delete_and_make_anew,
    "close": lambda log: log.close(),
    "the folder is removed": lambda log: shutil.rmtree(log.directory),
}


@pytest.mark.parametrize("begun", [False, True], ids=["before the first batch", "in the middle"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_being_read_stays(log: Log, change: Callable[[Log], object], begun: bool) -> None:
    expected = list(log.batches_from(0))
    assert len(expected) == COUNT
    batches = log.batches_from(0)
    found = [next(batches) for _ in range(20 * begun)]
    change(log)
    if not log.is_deleted and log.directory.exists():
        log.remove_deleted_files()
    assert [*found, *batches] == expected


@pytest.mark.parametrize("begun", [False, True])
def test_a_truncated_log_is_not_read_on(log: Log, begun: bool) -> None:
    """A new leader's records replace the removed ones: no reader gets a mixture."""
    batches = log.batches_from(0)
    if begun:
        next(batches)
    log.truncate_to(30, now_ms=NOW)
    append(log, COUNT)
    with pytest.raises(ApiError) as caught:
        list(batches)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_it_begins_with_the_batch_that_has_the_offset(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", CONFIG, clean=True, now_ms=NOW)
    for _ in range(20):
        log.append(build_batch([Record(b"k", b"v", NOW)] * 3), leader_epoch=0, now_ms=NOW)
    everything = b"".join(log.batches_from(0))
    ends = [position + header.size for position, header in iter_batches(everything)]
    for offset in range(61):
        snapshot = log.snapshot(offset)
        assert (snapshot.start_offset, snapshot.end_offset) == (offset, 60)
        assert b"".join(snapshot.batches()) == everything[([0, *ends])[offset // 3] :]


def test_garbage_is_not_taken_for_the_end(log: Log) -> None:
    segment = log.segments[2]
    with open(segment.path(), "r+b") as file:
        file.seek(16)
        file.write(b"\x7f")
    with pytest.raises(ApiError) as caught:
        list(log.batches_from(0))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("index", [0, 2], ids=["first segment", "later segment"])
def test_garbage_is_named_with_its_place(log: Log, index: int) -> None:
    segment = log.segments[index]
    with open(segment.path(), "r+b") as file:
        file.seek(16)
        file.write(b"\x7f")
    with pytest.raises(ApiError, match=f"{segment.path()}: no valid batch at byte 0 of {segment.size}"):
        list(log.batches_from(0))
