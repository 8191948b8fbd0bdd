"""One log's promises to its callers: opening, offsets, bounds, rolling, and behaviour after a failure."""

from __future__ import annotations

import errno
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache, OpenFile
from millstream_broker.log.log import Log
from millstream_broker.log.state import LogProgress
from millstream_kafka.batch import INT32_MAX, Record, build_batch, read_header
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000
ONE = build_batch([Record(b"k", b"v", NOW)])


class Home:
    """A log directory that records the calls."""

    def __init__(self) -> None:
        self.rolled: set[Log] = set()
        self.moved: set[Log] = set()
        self.errors: list[OSError] = []
        self.checkpoints = 0

    def fail(self, error: OSError) -> None:
        self.errors.append(error)

    def check(self, error: OSError) -> None:
        self.errors.append(error)

    def checkpoint(self) -> None:
        self.checkpoints += 1

    def commit_starts(self) -> None:
        self.checkpoints += 1


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def log(tmp_path: Path, home: Home) -> Log:
    return open_log(tmp_path, home=home)


def open_log(tmp_path: Path, *, clean: bool = True, **how: object) -> Log:
    return Log.open(tmp_path / "logs" / "t-0", LogConfig(), clean=clean, now_ms=NOW, **how)  # type: ignore[arg-type]


def send(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.append(ONE, leader_epoch=0, now_ms=NOW)


def producer_batch(producer_id: int, sequence: int) -> bytes:
    return build_batch(
        [Record(b"k", b"v", NOW)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def refusal(act: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()  # type: ignore[operator]
    return caught.value


# -- opening ------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_of_a_log_about_which_nothing_is_known(tmp_path: Path, log: Log) -> None:
    send(log, 2)
    log.close()
    log = open_log(tmp_path)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (0, 2, 0)
    assert (log.last_high_watermark, log.uncleanable, log.offline, log.topic_id) == (0, False, None, None)


def test_the_recovery_point_stays_within_the_log(tmp_path: Path, log: Log) -> None:
    send(log, 3)
    log.close()
    topic_id = uuid.uuid4()
    for recovery_point, start, expected in ((2, 0, 2), (9, 0, 3), (1, 2, 2)):
        log = open_log(tmp_path, recovery_point=recovery_point, log_start_offset=start, topic_id=topic_id)
        assert (log.flushed_offset, log.topic_id) == (expected, topic_id)
        log.close()


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ({"clean": True}, 3),
        ({"clean": False}, 0),
        ({"clean": False, "recovery_point": 2}, 3),
        ({"clean": False, "page_cache_kept": True}, 3),
    ],
)
def test_only_what_may_be_torn_is_verified(
    tmp_path: Path, log: Log, how: dict[str, bool | int], end: int
) -> None:
    send(log, 2)
    log.roll(now_ms=NOW)
    send(log)
    log.close()
    path = log.directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(ONE) - 1] ^= 1
    path.write_bytes(data)
    assert open_log(tmp_path, **how).log_end_offset == end  # type: ignore[arg-type]


def test_a_segment_that_was_found_is_as_old_as_its_opening(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True)
    created_ms = log.segments.active.created_ms
    assert isinstance(created_ms, int)
    assert abs(created_ms - time.time() * 1000) < 60_000


def test_open_files_are_shared_where_the_caller_has_a_cache(tmp_path: Path) -> None:
    files = FileCache()
    send(open_log(tmp_path, files=files))
    assert len(files) > 0


# -- appending ----------------------------------------------------------------------------------------------------


def test_a_batch_may_fill_a_segment(log: Log) -> None:
    log.config = replace(log.config, segment_bytes=2 * len(ONE))
    log.append(ONE + ONE, leader_epoch=0, now_ms=NOW)
    error = refusal(lambda: log.append(3 * ONE, leader_epoch=0, now_ms=NOW))
    assert error.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert error.message.endswith(f"{3 * len(ONE)} bytes exceed segment.bytes={2 * len(ONE)}")
    assert log.log_end_offset == 2


def test_a_request_has_at_most_as_many_records_as_a_segment(log: Log) -> None:
    log.truncate_fully_and_start_at(2**40, now_ms=NOW)
    send(log)
    header = read_header(ONE)
    for records, accepted in ((INT32_MAX + 1, False), (INT32_MAX, True)):
        validated = (
            memoryview(bytearray(ONE)),
            [header._replace(last_offset_delta=records - 1)],
            -1,
            AppendOrigin.CLIENT,
        )
        if accepted:
            log.append_validated(validated, leader_epoch=0, now_ms=NOW)
            assert log.log_end_offset == 2**40 + 1 + INT32_MAX
        else:
            error = refusal(lambda: log.append_validated(validated, leader_epoch=0, now_ms=NOW))  # noqa: B023
            assert error.code is ErrorCode.RECORD_LIST_TOO_LARGE
            assert error.message.endswith(f"{INT32_MAX + 1} records: a segment has at most {INT32_MAX}")


def test_batches_get_offsets_and_the_epoch_one_after_the_other(log: Log) -> None:
    three = build_batch([Record(b"k", b"v", NOW)] * 3)
    buffer = bytearray(three + ONE + three)
    info = log.append(buffer, leader_epoch=7, now_ms=NOW)
    assert info == (0, 6, -1, 0, False)
    headers = [read_header(buffer, at) for at in (0, len(three), len(three) + len(ONE))]
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [
        (0, 7),
        (3, 7),
        (4, 7),
    ]
    assert next(log.batches_from(3)) == bytes(buffer[len(three) : len(three) + len(ONE)])


def test_a_follower_takes_offsets_and_epochs_as_they_are(log: Log) -> None:
    batches = [
        build_batch([Record(b"k", b"v", NOW)] * 2, base_offset=base, leader_epoch=epoch)
        for base, epoch in ((5, 1), (7, 1), (9, 3))
    ]
    info = log.append_as_follower(b"".join(batches), now_ms=NOW)
    assert info == (5, 10, -1, 0, False)
    assert log.epochs.entries == [(1, 5), (3, 9)]
    assert (log.log_end_offset, list(log.batches_from(0))) == (11, batches)
    batches.append(build_batch([Record(b"k", b"v", NOW)], base_offset=11, leader_epoch=3))
    log.append_as_follower(batches[-1], now_ms=NOW)
    assert (log.log_start_offset, list(log.batches_from(0))) == (0, batches)


@pytest.mark.parametrize(("first", "segments"), [(INT32_MAX, [0]), (INT32_MAX + 1, [0, INT32_MAX + 1])])
def test_an_empty_segment_is_left_only_where_it_cannot_name_the_offsets(
    log: Log, first: int, segments: list[int]
) -> None:
    log.append_as_follower(build_batch([Record(b"k", b"v", NOW)], base_offset=first), now_ms=NOW)
    assert bases(log) == segments


@pytest.mark.parametrize("producer_id", [0, 1, 7])
def test_what_a_producer_sends_again_is_not_written_again(log: Log, producer_id: int) -> None:
    for sequence in (0, 1, 1):
        info = log.append(producer_batch(producer_id, sequence), leader_epoch=0, now_ms=NOW)
    assert (info.first_offset, info.last_offset, info.duplicate) == (1, 1, True)
    assert log.log_end_offset == 2


def test_producers_are_forgotten_after_their_time(log: Log) -> None:
    log.config = replace(log.config, producer_id_expiration_ms=1000)
    log.append(producer_batch(7, 0), leader_epoch=0, now_ms=NOW)
    assert log.expire_producers(NOW + 999) == 0
    assert log.expire_producers(NOW + 2000) == 1


def test_a_refusal_in_a_thread_names_the_records(log: Log) -> None:
    """On the loop, the header suffices to refuse the batch."""
    late = build_batch([Record(b"k", b"v", NOW), Record(b"k", b"v", NOW + 10**9)])
    quick = refusal(lambda: log.append(late, leader_epoch=0, now_ms=NOW))
    thorough = refusal(lambda: log.validate(bytearray(late), now_ms=NOW))
    assert quick.code is thorough.code is ErrorCode.INVALID_TIMESTAMP
    assert "message.timestamp.after.max.ms" in quick.message
    assert "One or more records have been rejected" in thorough.message


# -- rolling ------------------------------------------------------------------------------------------------------


def test_a_roll_without_records_does_nothing(log: Log) -> None:
    log.roll(now_ms=NOW)
    assert bases(log) == [0]
    send(log, 2)
    log.roll(now_ms=NOW)
    log.roll(now_ms=NOW)
    assert bases(log) == [0, 2]


def test_closed_segments_are_announced_until_they_are_on_the_disk(
    tmp_path: Path, home: Home, log: Log
) -> None:
    send(log)
    assert home.rolled == set(), "the active segment is not closed"
    log.roll(now_ms=NOW)
    assert home.rolled == {log}
    log.flush()
    log.close()
    home.rolled.clear()
    open_log(tmp_path, home=home, recovery_point=1).close()
    assert home.rolled == set()
    log = open_log(tmp_path, home=home)
    assert home.rolled == {log}


def test_an_idle_segment_of_a_log_that_is_offline_stays(log: Log) -> None:
    log.config = replace(log.config, segment_ms=1000)
    send(log)
    log.offline = OSError(errno.EIO, "")
    log.roll_if_old(NOW + 5000)
    assert bases(log) == [0]
    log.offline = None
    log.roll_if_old(NOW + 5000)
    assert bases(log) == [0, 1]
    assert log.segments.active.created_ms == NOW + 5000


# -- reading and removing -----------------------------------------------------------------------------------------


def test_at_the_upper_offset_nothing_is_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    send(log, 5)
    reads = []
    pread = OpenFile.pread
    monkeypatch.setattr(OpenFile, "pread", lambda *call: reads.append(call) or pread(*call))
    assert log.read(3, 1000, upper=3, min_one=True) is None
    assert log.read(5, 1000, upper=9, min_one=True) is None
    assert reads == []


def test_reads_are_bounded_by_the_log(log: Log) -> None:
    send(log, 5)
    log.delete_records_before(2)
    for offset in (1, 6):
        error = refusal(lambda: log.read(offset, 1000, upper=9, min_one=True))  # noqa: B023
        assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert error.message.endswith(f"offset {offset} is not within 2 and 5")
    part = log.read(2, 1000, upper=9, min_one=True)
    assert part is not None
    assert len(part) == 3 * len(ONE)


def test_records_are_deleted_within_the_log(log: Log) -> None:
    send(log, 5)
    assert log.delete_records_before(0) == 0
    assert log.delete_records_before(5) == 5
    for offset in (-1, 6):
        error = refusal(lambda: log.delete_records_before(offset))  # noqa: B023
        assert error.message.endswith(f"offset {offset} is not within 0 and 5")


def test_retention_deletes_nothing_of_a_log_that_is_offline(log: Log) -> None:
    send(log, 2)
    log.config = replace(log.config, retention_ms=0)
    log.offline = OSError(errno.EIO, "")
    assert log.delete_old_segments(NOW + 5000) == 0
    log.offline = None
    assert log.delete_old_segments(NOW + 5000, 99) == 1


def test_what_checkpoints_say_of_a_log(home: Home, log: Log) -> None:
    send(log, 3)
    log.roll(now_ms=NOW)
    send(log)
    assert log.progress() == LogProgress(0, None, 0)
    log.flush()
    log.first_dirty_offset = 2
    log.delete_records_before(1)
    assert log.progress() == LogProgress(4, 1, 2), "the start was moved into a segment"
    log.delete_records_before(3)
    assert log.progress() == LogProgress(4, None, 2), "it is where the first segment starts"


def test_a_truncation_withdraws_only_what_was_claimed(home: Home, log: Log) -> None:
    send(log, 4)
    log.flush()
    log.claimed = 4
    log.claim_nothing_behind(4)
    assert home.checkpoints == 0
    log.claim_nothing_behind(3)
    assert home.checkpoints == 1
    assert log.progress().flushed == 3
    log.release_claims()
    assert log.progress().flushed == 4


# -- closing and failing ------------------------------------------------------------------------------------------


def files_written(log: Log) -> set[str]:
    return {path.suffix for path in log.directory.iterdir() if path.stat().st_size}


def test_a_clean_close_writes_what_a_restart_reads(tmp_path: Path, log: Log) -> None:
    for how in ({"clean": False}, {}):
        log = open_log(tmp_path)
        send(log)
        log.close(**how)
        snapshot = log.directory / f"{log.log_end_offset:020d}.snapshot"
        assert snapshot.exists() == (not how)
        assert (".timeindex" in files_written(log)) == (not how)


def test_a_log_that_is_offline_writes_nothing_when_it_closes(log: Log) -> None:
    send(log)
    log.offline = OSError(errno.EIO, "")
    log.close()
    assert ".timeindex" not in files_written(log)


@pytest.mark.parametrize(
    ("error", "reason", "taken_offline"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error", True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "No such file or directory", True),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", False),
        (OSError("something else"), "something else", True),
    ],
)
def test_a_failure_of_the_disk_takes_the_log_offline(
    log: Log, home: Home, error: OSError, reason: str, taken_offline: bool
) -> None:
    told = log.failed(error)
    assert (told.code, told.message) == (ErrorCode.KAFKA_STORAGE_ERROR, f"{log.directory}: {reason}")
    assert log.offline is (error if taken_offline else None)
    assert home.errors == ([error] if taken_offline else [])
    if taken_offline:
        for refused in (log.check_online, lambda: send(log), log.flush, log.flush_closed):
            assert refusal(refused).code is ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal(lambda: log.read(0, 1, upper=1, min_one=True)).code is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        log.check_online()


def test_a_log_of_no_directory_fails_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    error = OSError(errno.EIO, "Input/output error")
    log.failed(error)
    assert log.offline is error
    log.checkpoint()


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
    ],
)
def test_a_deleted_log_misses_no_files(
    tmp_path: Path, log: Log, home: Home, error: OSError, failed: bool
) -> None:
    send(log)
    log.roll(now_ms=NOW)
    log.move(tmp_path / "logs" / "t-0.gone-delete")
    assert log.is_deleted
    assert all(segment.deleted for segment in log.segments)
    assert log.failed(error).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert home.errors == ([error] if failed else [])
    assert log.is_deleted
    assert refusal(log.check_online).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    log.delete()
    assert list((tmp_path / "logs").iterdir()) == []
