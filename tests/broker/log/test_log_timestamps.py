"""Look-ups by time over several segments, which may be deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.log import timestamps
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000


def written(tmp_path: Path, *segments: list[int]) -> Log:
    """A log with one segment per list of timestamps, and an empty active one."""
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    for each in segments:
        for timestamp in each:
            log.append(build_batch([Record(b"k", b"v", timestamp)]), leader_epoch=3, now_ms=NOW)
        log.roll(now_ms=NOW)
    return log


def test_the_first_record_that_is_not_older(tmp_path: Path) -> None:
    log = written(tmp_path, [5, 9], [2, 3], [9, 12])
    records = list(enumerate([5, 9, 2, 3, 9, 12]))
    for timestamp in range(-1, 14):
        for start in range(7):
            found = [(at, offset, 3) for offset, at in records if at >= timestamp and offset >= start]
            assert timestamps.first_from(log.segments, timestamp, start) == (found[0] if found else None)


def test_older_segments_are_not_read(tmp_path: Path) -> None:
    log = written(tmp_path, [5], [7], [9])
    assert timestamps.first_from(log.segments, 10, 0) is None  # now the largest timestamps are known
    for segment in log.segments[:2]:
        Path(segment.path()).unlink()
        segment.release()
    assert timestamps.first_from(log.segments, 8, 0) == (9, 2, 3)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], None),
        ([[-1, -1]], None),
        ([[0]], (0, 0, 3)),
        ([[-1], [0, 0], [0]], (0, 1, 3)),
        ([[4, 7, 7], [7, 5]], (7, 1, 3)),
        ([[4, 7], [5, 8, 6]], (8, 3, 3)),
    ],
)
def test_the_first_record_of_the_largest_timestamp(
    tmp_path: Path, segments: list[list[int]], expected: tuple[int, int, int] | None
) -> None:
    assert timestamps.latest(written(tmp_path, *segments).segments) == expected


def test_a_log_whose_segments_are_all_being_replaced_has_no_latest_record() -> None:
    assert timestamps.latest([]) is None  # type: ignore[arg-type]


class Vanishing:
    """A segment whose file is gone; the log notices it ``later`` look-ups afterwards."""

    max_timestamp, base_offset = 9, 0

    def __init__(self, segments: list[Any], *, later: int) -> None:
        self.segments, self.later, self.tries = segments, later, 0

    def records_from_timestamp(self, timestamp: int, start_offset: int, largest: int, check: Any) -> None:
        self.tries += 1
        if self.tries > self.later:
            self.segments[:] = [each for each in self.segments if each is not self]
        raise FileNotFoundError


class Whole:
    max_timestamp, base_offset = 9, 0

    def records_from_timestamp(
        self, timestamp: int, start_offset: int, largest: int, check: Any
    ) -> tuple[int, int, int]:
        return 9, 1, 3


@pytest.mark.parametrize("look_up", [lambda log: timestamps.first_from(log, 9, 0), timestamps.latest])
def test_a_look_up_starts_over_when_segments_go(look_up: Any) -> None:
    segments: list[Any] = []
    segments += [Vanishing(segments, later=0) for _ in range(20)]
    segments.append(Whole())
    assert look_up(segments) == (9, 1, 3)


def test_a_missing_file_of_a_segment_that_stays_is_an_error() -> None:
    segments: list[Any] = []
    segments.append(Vanishing(segments, later=100))
    with pytest.raises(FileNotFoundError):
        timestamps.first_from(segments, 9, 0)  # type: ignore[arg-type]
    assert segments[0].tries == 1


# -- changes meanwhile --------------------------------------------------------------------------------------------


def made_anew(log: Log) -> None:
    """The topic is recreated; its new records have the same timestamps."""
    folder = log.directory
    log.move(folder.with_name("gone"))
    log.delete()
    written(folder.parent, [5, 9])


def cut_and_written_anew(log: Log) -> None:
    log.truncate_to(0, now_ms=NOW)
    log.append(build_batch([Record(b"other", None, 9)]), leader_epoch=4, now_ms=NOW)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (made_anew, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (cut_and_written_anew, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
@pytest.mark.parametrize("latest", [False, True], ids=["by time", "the latest"])
def test_records_of_another_log_are_never_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Log], None],
    code: ErrorCode,
    latest: bool,
) -> None:
    """The thread knows a file's name, but has not opened it yet."""
    log = written(tmp_path, [5, 9], [7])
    opened = FileCache.get
    changes = [change]

    def open_later(files: FileCache, path: str, *, create: bool = False) -> OpenFile:
        if changes and path.endswith(".log"):
            changes.pop()(log)
        return opened(files, path, create=create)

    for segment in log.segments:
        segment.unload()
    monkeypatch.setattr(FileCache, "get", open_later)
    with pytest.raises(ApiError) as caught:
        _ = log.max_timestamp() if latest else log.offset_for_timestamp(6)
    assert caught.value.code is code


def test_a_log_that_is_being_truncated_is_not_searched(tmp_path: Path) -> None:
    log = written(tmp_path, [5, 9])
    log.truncating = True
    with pytest.raises(ApiError) as caught:
        log.offset_for_timestamp(NOW)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
