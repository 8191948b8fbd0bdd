"""Rolling, retention, and the look-ups of ListOffsets, DeleteRecords and OffsetForLeaderEpoch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.config import LogConfig
from millstream_broker.log.epochs import LeaderEpochs
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000


def open_log(tmp_path: Path, config: LogConfig, *, clean: bool = True) -> Log:
    return Log.open(tmp_path / "t-0", config, clean=clean, now_ms=NOW)


def send(log: Log, timestamp: int = NOW, *, size: int = 100, now: int = NOW, epoch: int = 0) -> AppendInfo:
    batch = build_batch([Record(b"k", b"v" * size, timestamp)])
    return log.append(batch, leader_epoch=epoch, now_ms=now)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_roll_by_size(tmp_path: Path) -> None:
    batch = len(build_batch([Record(b"k", b"v" * 100, NOW)]))
    log = open_log(tmp_path, LogConfig(segment_bytes=3 * batch))
    for _ in range(7):
        send(log)
    assert bases(log) == [0, 3, 6]
    assert [segment.size for segment in log.segments] == [3 * batch, 3 * batch, batch]
    with pytest.raises(ApiError) as caught:
        send(log, size=4 * batch)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_roll_by_the_time_of_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    for timestamp in (0, 1000, 1001, 500, 2001, 2002):
        send(log, timestamp)
    assert bases(log) == [0, 2, 5]


@pytest.mark.parametrize("times", [(1001, 0), (0, 1001)])
def test_roll_by_the_newest_of_several_batches(tmp_path: Path, times: tuple[int, int]) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    send(log, 0)
    batches = b"".join(build_batch([Record(None, b"x", timestamp)]) for timestamp in times)
    log.append(bytearray(batches), leader_epoch=0, now_ms=NOW)
    assert bases(log) == [0, 1]


def test_roll_by_the_clock_without_timestamps(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    for now in (NOW, NOW + 1000, NOW + 1001):
        send(log, -1, now=now)
    assert bases(log) == [0, 2]


def test_roll_by_a_full_index(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(index_interval_bytes=0, index_size_max_bytes=60))
    for i in range(20):
        send(log, NOW + i)
    # Five entries of twelve bytes fit, one of them reserved for the end; the first batch gets none.
    assert bases(log) == [0, 5, 10, 15]


def test_roll_when_offsets_exceed_the_index(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    log.append_as_follower(build_batch([Record(b"a", b"b", NOW)], base_offset=5), now_ms=NOW)
    far = 5 + 2**31
    log.append_as_follower(build_batch([Record(b"a", b"b", NOW)], base_offset=far), now_ms=NOW)
    assert bases(log)[-1] == far
    assert log.log_end_offset == far + 1
    part = log.read(6, 100, upper=far + 1, min_one=True)
    assert part is not None
    log.close()
    log = open_log(tmp_path, LogConfig(), clean=False)
    assert log.log_end_offset == far + 1


def test_an_idle_segment_rolls(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    send(log)
    log.roll_if_old(NOW + 1000)
    assert bases(log) == [0]
    log.roll_if_old(NOW + 1001)
    assert bases(log) == [0, 1]
    log.roll_if_old(NOW + 9000)
    assert bases(log) == [0, 1]


def test_retention_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400, retention_ms=1000))
    for i in range(6):
        send(log, NOW + 1000 * i)  # two per segment
    assert bases(log) == [0, 2, 4]
    assert log.delete_old_segments(NOW + 2000) == 0
    assert log.delete_old_segments(NOW + 2001) == 1
    assert (log.log_start_offset, bases(log)) == (2, [2, 4])
    with pytest.raises(ApiError) as caught:
        log.read(1, 100, upper=6, min_one=True)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.delete_old_segments(NOW + 100_000, high_watermark=5) == 1
    assert log.delete_old_segments(NOW + 100_000) == 1  # even the active one, which rolls first
    assert (log.log_start_offset, log.log_end_offset, log.size, bases(log)) == (6, 6, 0, [6])
    log.remove_deleted_files()
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log")) == [f"{6:020d}.log"]
    log.close()
    log = open_log(tmp_path, LogConfig())
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)


def test_retention_survives_a_restart(tmp_path: Path) -> None:
    """The time indexes provide the largest timestamps then."""
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for timestamp in (5, 900, 3, 4, 100):
        send(log, timestamp)
    log.close()
    log = open_log(tmp_path, LogConfig(segment_bytes=400, retention_ms=1000))
    assert log.delete_old_segments(1500) == 0  # the first segment has 900; the later ones stay with it
    assert log.delete_old_segments(1901) == 3


def test_retention_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400, retention_ms=-1))
    for _ in range(10):
        send(log)
    size = log.size
    segment = log.segments[0].size
    log.config = replace(log.config, retention_bytes=size - segment + 1)
    assert log.delete_old_segments(NOW) == 0
    log.config = replace(log.config, retention_bytes=size - segment)
    assert log.delete_old_segments(NOW) == 1
    log.config = replace(log.config, retention_bytes=size - 3 * segment - 1, cleanup_policy="compact")
    assert log.delete_old_segments(NOW) == 0  # compacted logs keep each key's latest record


@pytest.mark.parametrize("limit", [{"retention_bytes": 0}, {"retention_ms": 0}])
def test_a_retention_of_nothing_keeps_what_is_new(tmp_path: Path, limit: dict[str, int]) -> None:
    log = open_log(tmp_path, replace(LogConfig(segment_bytes=400, retention_ms=-1), **limit))
    for _ in range(4):
        send(log, NOW)
    assert bases(log) == [0, 2]
    if "retention_ms" in limit:
        assert log.delete_old_segments(NOW) == 0
    assert log.delete_old_segments(NOW + 1, high_watermark=3) == 1
    assert log.delete_old_segments(NOW + 1) == 1
    assert log.delete_old_segments(NOW + 1) == 0
    assert (log.log_start_offset, bases(log)) == (4, [4])


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_segments_before_the_start_of_the_log_go(tmp_path: Path, policy: str) -> None:
    """As after a restart between DeleteRecords and the deletion of its files."""
    config = LogConfig(segment_bytes=400, retention_ms=-1, cleanup_policy=policy)
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for _ in range(6):
        send(log)
    log.close()
    for start, expected in ((3, [2, 4]), (4, [4]), (6, [4])):
        log = Log.open(tmp_path / "t-0", config, clean=True, log_start_offset=start, now_ms=NOW)
        log.delete_old_segments(NOW)
        assert (log.log_start_offset, bases(log)) == (start, expected)
        log.close()


def test_no_more_segments_go_at_once_than_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400, retention_ms=1000))
    for _ in range(10):
        send(log)
    assert log.delete_old_segments(NOW + 5000, at_most=0) == 0
    assert log.delete_old_segments(NOW + 5000, at_most=2) == 2
    assert bases(log) == [4, 6, 8]


def test_readers_keep_what_is_deleted_under_them(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for _ in range(10):
        send(log)
    part = log.read(0, 1000, upper=10, min_one=True)
    assert part is not None
    before = part.read()
    log.delete_records_before(9)
    log.remove_deleted_files()
    assert part.read() == before


def test_delete_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for _ in range(10):
        send(log)
    assert log.delete_records_before(5) == 5
    assert bases(log) == [4, 6, 8]
    assert log.delete_records_before(3) == 5  # never backwards
    for offset in (11, -1):
        with pytest.raises(ApiError) as caught:
            log.delete_records_before(offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.offset_for_timestamp(0) == (NOW, 5, 0)
    assert log.delete_records_before(10) == 10
    assert log.read(10, 100, upper=10, min_one=True) is None
    assert log.offset_for_timestamp(0) is None


@pytest.mark.parametrize("codec", ["producer", "gzip", "lz4"])
def test_timestamps_within_batches(tmp_path: Path, codec: str) -> None:
    log = open_log(tmp_path, LogConfig(compression_type=codec))
    log.append(build_batch([Record(b"", b"", t) for t in (10, 30, 20)]), leader_epoch=0, now_ms=NOW)
    log.append(build_batch([Record(b"", b"", t) for t in (5, 30, 40, 40)]), leader_epoch=1, now_ms=NOW)
    assert log.offset_for_timestamp(0) == (10, 0, 0)
    assert log.offset_for_timestamp(11) == (30, 1, 0)
    assert log.offset_for_timestamp(31) == (40, 5, 1)
    assert log.offset_for_timestamp(41) is None
    assert log.max_timestamp() == (40, 5, 1)


def test_log_append_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    info = send(log, 5, now=NOW)
    assert info.log_append_time == NOW
    send(log, 5, now=NOW + 7)
    assert log.offset_for_timestamp(NOW + 1) == (NOW + 7, 1, 0)
    assert log.max_timestamp() == (NOW + 7, 1, 0)


def test_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    assert (log.log_start_offset, log.log_end_offset, log.size) == (0, 0, 0)
    assert log.read(0, 100, upper=0, min_one=True) is None
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None
    assert log.epochs.end_offset(0, log.log_end_offset) == (-1, -1)
    assert log.flush() == 0
    assert log.delete_old_segments(NOW) == 0
    for offset in (-1, 1):
        with pytest.raises(ApiError):
            log.read(offset, 100, upper=1, min_one=True)


def test_followers_take_offsets_as_given(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    first = build_batch([Record(b"a", b"b", NOW)] * 3, base_offset=100, leader_epoch=4)
    second = build_batch([Record(b"a", b"b", NOW)], base_offset=110, leader_epoch=6)
    info = log.append_as_follower(first + second, now_ms=NOW)
    assert (info.first_offset, info.last_offset) == (100, 110)
    assert log.log_end_offset == 111
    assert log.epochs.entries == [(4, 100), (6, 110)]
    part = log.read(104, 1000, upper=111, min_one=True)
    assert part is not None
    assert part.read() == second
    with pytest.raises(ApiError) as caught:
        log.append_as_follower(second, now_ms=NOW)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    third = build_batch([Record(b"a", b"b", NOW)], base_offset=111, leader_epoch=6)
    for damaged in (b"", third[:-1], third[:-1] + b"\xee", third + b"x"):
        with pytest.raises(ApiError) as caught:
            log.append_as_follower(damaged, now_ms=NOW)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 111


def test_an_empty_follower_takes_the_batch_in_which_the_log_starts(tmp_path: Path) -> None:
    """As in Kafka: after DeleteRecords, the leader's log may start within a batch."""
    log = open_log(tmp_path, LogConfig())
    log.truncate_fully_and_start_at(105, now_ms=NOW)
    first = build_batch([Record(b"a", b"b", NOW)] * 5, base_offset=102, leader_epoch=4)
    before = build_batch([Record(b"a", b"b", NOW)] * 3, base_offset=102, leader_epoch=4)
    for refused in (before, before + first):
        with pytest.raises(ApiError) as caught:
            log.append_as_follower(refused, now_ms=NOW)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(ApiError) as caught:
        log.append_as_follower(first[:-1] + b"\xee", now_ms=NOW)
    assert (caught.value.code, log.log_end_offset) == (ErrorCode.CORRUPT_MESSAGE, 105)
    log.append_as_follower(first, now_ms=NOW)
    assert (log.log_start_offset, log.log_end_offset) == (102, 107)
    assert log.delete_records_before(105) == 105
    assert bases(log) == [102]
    log.close()
    log = open_log(tmp_path, LogConfig())
    assert (bases(log), log.log_end_offset, log.epochs.entries) == ([102], 107, [(4, 105)])


def test_truncation_at_the_end_takes_an_epoch_without_records(tmp_path: Path) -> None:
    """A former leader that wrote nothing must forget its epoch, or the logs seem to diverge for ever."""
    log = open_log(tmp_path, LogConfig())
    send(log, epoch=3)
    log.epochs.assign(5, log.log_end_offset)
    log.truncate_to(log.log_end_offset + 1, now_ms=NOW)
    assert log.epochs.latest == 5
    log.truncate_to(log.log_end_offset, now_ms=NOW)
    assert (log.log_end_offset, log.epochs.entries) == (1, [(3, 0)])
    reread = LeaderEpochs(str(tmp_path / "t-0"))
    reread.load()
    assert reread.entries == [(3, 0)]


def test_leading_an_epoch_without_writing(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig())
    send(log, epoch=1)
    log.assign_leader_epoch(2)
    log.assign_leader_epoch(4)
    assert log.epochs.end_offset(1, log.log_end_offset) == (1, 1)
    assert log.epochs.end_offset(4, log.log_end_offset) == (4, 1)
    send(log, epoch=4)
    assert log.epochs.entries == [(1, 0), (4, 1)]


def test_flush_policy_figures(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for _ in range(5):
        send(log)
    assert (log.unflushed_messages, log.flushed_offset) == (5, 0)
    assert log.unflushed_bytes == log.size
    assert log.flush() == 5
    assert (log.unflushed_messages, log.flushed_offset, log.unflushed_bytes) == (0, 5, 0)
    send(log)
    assert log.unflushed_messages == 1


def test_move_and_delete(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=400))
    for _ in range(5):
        send(log)
    part = log.read(0, 100, upper=5, min_one=True)
    log.move(tmp_path / "moved")
    assert part is not None
    assert part.read() == next(log.batches_from(0))
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        send(log)
    assert log.directory == tmp_path / "moved"
    log.delete()
    assert list(tmp_path.iterdir()) == []


def test_two_threads_may_unlink_what_was_deleted(tmp_path: Path) -> None:
    """One thread may unlink the last file just after the other has seen it."""

    class Contended(list[str]):
        def __len__(self) -> int:
            seen = super().__len__()
            if seen == 1:
                os.unlink(super().pop())
            return seen

    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True)
    file = tmp_path / "t-0" / "a.deleted"
    file.touch()
    log.segments._deleted = Contended([str(file), str(tmp_path / "gone.deleted")])
    log.remove_deleted_files()
    assert not file.exists()
    log.close()
