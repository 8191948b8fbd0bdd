"""One followed partition: its requests, and its handling of the leader's responses."""

from __future__ import annotations

import errno
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log import truncation
from millstream_broker.log.append_info import AppendInfo
from millstream_broker.log.compaction import Compaction
from millstream_broker.log.folders import STRAY_NOTE
from millstream_broker.log.log import Log
from millstream_broker.log.segment import Segment
from millstream_broker.replication.follower import Follower, Outcome
from millstream_broker.replication.purgatory import Delayed, DelayedProduce, Purgatory
from millstream_harness.held_thread import HeldThread
from millstream_harness.replica import NOW_MS, THEM, Waiter, batch, fetched, led_by, open_log, topic
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import EpochEndOffset, FetchPartition, PartitionData


def following(folder: Path, *batches: memoryview, high_watermark: int = 0) -> Follower:
    """Partition t-0 in leader epoch 3, led by broker 2."""
    log = open_log(folder / "t-0", *batches)
    return Follower(topic("t", led_by(THEM, epoch=3)), 0, log, high_watermark, Purgatory())


async def outcome(follower: Follower, data: PartitionData) -> Outcome:
    """The outcome of a response that makes the follower cut its log."""
    assert follower.answered(data) is Outcome.TRUNCATING
    assert follower.truncation is not None
    return await follower.truncation


async def begun_within(follower: Follower, leader_start: int, leader_end: int) -> Outcome:
    found = follower.begin_within(leader_start, leader_end)
    return found if follower.truncation is None else await follower.truncation


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_request_says_how_far_the_log_is(tmp_path: Path) -> None:
    follower = following(tmp_path, batch("a", "b", epoch=2), batch("c", offset=2, epoch=3))
    assert follower.request(1000) == FetchPartition(0, 3, 3, 3, 0, 1000)
    assert (follower.failures, follower.is_throttled) == (0, False)


def test_records_make_the_log_grow_and_the_high_watermark_follows_it(tmp_path: Path) -> None:
    follower = following(tmp_path)
    assert follower.answered(fetched(records=batch("a", "b", epoch=3), high_watermark=5)) is Outcome.GOES_ON
    assert (follower.log.log_end_offset, follower.high_watermark) == (2, 2)
    assert follower.answered(fetched(high_watermark=1)) is Outcome.NOTHING_NEW
    assert follower.high_watermark == 2, "it never goes back"


def test_consumers_are_told_how_many_bytes_more_are_safe(tmp_path: Path) -> None:
    follower, waiter = following(tmp_path), Waiter()
    follower.waiters.add(waiter)
    size = len(batch("a"))
    for offset in range(2):
        follower.answered(fetched(records=batch("a", offset=offset, epoch=3)))
    assert waiter.told == [], "nothing of it is safe"
    follower.answered(fetched(high_watermark=2))
    assert waiter.told.pop() == 2 * size
    follower.answered(fetched(high_watermark=2))
    assert waiter.told == []
    follower.answered(fetched(records=batch("a", offset=2, epoch=3), high_watermark=3))
    assert waiter.told.pop() == size
    for offset in (3, 4):
        follower.answered(fetched(records=batch("a", offset=offset, epoch=3)))
    for high_watermark, more in ((4, 2 * size), (5, 1)):
        follower.answered(fetched(high_watermark=high_watermark))
        assert waiter.told.pop() == more
    assert waiter.told == []


def test_consumers_ask_again_when_the_replica_is_not_what_it_was(tmp_path: Path) -> None:
    follower, waiter = following(tmp_path), Waiter()
    follower.waiters.add(waiter)
    follower.follow(led_by(THEM, epoch=3, isr=(THEM,)))
    assert waiter.told == [], "the same leadership"
    follower.follow(led_by(THEM, epoch=4))
    follower.step_up()
    follower.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert waiter.told == [0, 0, 0]


def test_the_start_of_the_log_follows_the_leaders(tmp_path: Path) -> None:
    follower = following(tmp_path, batch("a"), batch("b", offset=1))
    assert follower.answered(fetched(log_start_offset=1)) is Outcome.GOES_ON
    assert follower.log.log_start_offset == 1
    assert follower.answered(fetched(log_start_offset=9)) is Outcome.GOES_ON
    assert follower.log.log_start_offset == 2, "not behind the end"
    assert follower.answered(fetched(log_start_offset=0)) is Outcome.NOTHING_NEW


def test_producers_are_last_seen_at_the_time_of_the_wall_clock(tmp_path: Path) -> None:
    follower = following(tmp_path)
    lasts_ms = follower.log.config.producer_id_expiration_ms
    before = int(time.time() * 1000)
    follower.answered(fetched(records=batch("a", producer_id=7, epoch=3)))
    assert follower.log.expire_producers(before + lasts_ms - 1) == 0
    assert follower.log.expire_producers(int(time.time() * 1000) + lasts_ms + 1) == 1


async def test_a_log_that_parts_from_the_leaders_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    follower = following(tmp_path, batch("a", epoch=1), batch("b", "c", offset=1, epoch=2), high_watermark=2)
    waiting = follower.purgatory.add(2, Delayed(), None)
    assert await outcome(follower, fetched(diverging_epoch=EpochEndOffset(1, 1))) is Outcome.GOES_ON
    assert (follower.log.log_end_offset, follower.high_watermark) == (1, 1)
    with pytest.raises(ApiError) as error:
        await waiting
    assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert said(caplog) == [("INFO", "t-0: truncated from offset 3 to 1: epoch 1 of broker 2 ends at 1")]


async def test_a_log_that_has_nothing_in_common_with_the_leaders_is_cut_to_nothing(tmp_path: Path) -> None:
    follower = following(tmp_path, batch("a", "b", epoch=1))
    assert await outcome(follower, fetched(diverging_epoch=EpochEndOffset(0, 0))) is Outcome.GOES_ON
    assert follower.log.log_end_offset == 0


def test_an_undefined_end_is_no_divergence(tmp_path: Path) -> None:
    follower = following(tmp_path, batch("a", "b", epoch=1))
    assert follower.answered(fetched(diverging_epoch=EpochEndOffset())) is Outcome.NOTHING_NEW
    assert follower.log.log_end_offset == 2


async def test_a_producer_waits_until_the_high_watermark_is_behind_its_records(tmp_path: Path) -> None:
    """A client retries at the former leader, and learns the fate of its records."""
    sent = batch("a", "b", producer_id=7, epoch=3)
    follower = following(tmp_path, sent, high_watermark=1)
    waiting = follower.append(batch("a", "b", producer_id=7), NOW_MS, acks=-1, timeout_ms=60_000)
    assert isinstance(waiting, DelayedProduce)
    follower.answered(fetched(high_watermark=1))
    assert not waiting.is_done
    follower.answered(fetched(high_watermark=2))
    await waiting
    again = follower.append(batch("a", "b", producer_id=7), NOW_MS, acks=-1, timeout_ms=60_000)
    assert again == waiting.info == AppendInfo(0, 1, NOW_MS, 0, duplicate=True)


def test_other_records_are_not_a_followers_to_append(tmp_path: Path) -> None:
    follower = following(tmp_path, batch("a", "b", producer_id=7, epoch=3), high_watermark=2)
    for sent, acks in (
        (batch("c"), -1),
        (batch("a", "b", producer_id=8), -1),
        (batch("a", "b", producer_id=7), 1),
    ):
        with pytest.raises(ApiError) as error:
            follower.append(sent, NOW_MS, acks=acks, timeout_ms=60_000)
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_offset_that_the_leader_does_not_have_is_no_failure(tmp_path: Path) -> None:
    follower = following(tmp_path)
    assert follower.answered(PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE)) is Outcome.OUT_OF_RANGE
    assert follower.failures == 0


def test_a_failure_is_said_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    follower = following(tmp_path)
    for failures in (1, 2, 3):
        assert follower.answered(PartitionData(0, ErrorCode.KAFKA_STORAGE_ERROR)) is Outcome.FAILED
        assert follower.failures == failures
    cannot = ("WARNING", "t-0: cannot follow broker 2: it answers KAFKA_STORAGE_ERROR")
    assert said(caplog) == [cannot]
    for _ in range(2):
        follower.answered(fetched())
    assert follower.failures == 0
    again = ("INFO", "t-0: follows broker 2 again")
    assert said(caplog) == [cannot, again]
    follower.answered(PartitionData(0, ErrorCode.KAFKA_STORAGE_ERROR))
    assert said(caplog) == [cannot, again, cannot]


def test_what_passes_when_both_brokers_know_of_the_election_is_not_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    follower = following(tmp_path)
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH):
        assert follower.answered(PartitionData(0, code)) is Outcome.FAILED
    assert follower.failures == 2
    follower.answered(fetched())
    assert said(caplog) == []


def test_records_that_are_damaged_are_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = following(tmp_path)
    damaged = batch("a", epoch=3)
    damaged[-1] ^= 0xFF
    assert follower.answered(fetched(records=damaged)) is Outcome.FAILED
    assert follower.log.log_end_offset == 0
    assert said(caplog) == [
        ("ERROR", "t-0: cannot follow broker 2: the batch at offset 0 is damaged"),
    ]


async def test_a_disk_that_fails_is_named_by_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    follower = following(tmp_path, batch("a", "b", epoch=1))
    monkeypatch.setattr(Log, "truncate_to", full)
    assert await outcome(follower, fetched(diverging_epoch=EpochEndOffset(0, 0))) is Outcome.FAILED
    assert said(caplog) == [("ERROR", "t-0: cannot follow broker 2: No space left on device")]


# Where the leader's log is


async def test_a_log_that_is_longer_than_the_leaders_is_cut_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = following(tmp_path, batch("a"), batch("b", offset=1), batch("c", offset=2), high_watermark=3)
    assert await begun_within(follower, 0, 2) is Outcome.GOES_ON
    assert (follower.log.log_end_offset, follower.high_watermark) == (2, 2)
    assert said(caplog) == [
        ("WARNING", "t-0: truncated from offset 3 to 2, where the log of broker 2 ends"),
    ]


async def test_a_log_that_ends_before_the_leaders_begins_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = following(tmp_path, batch("a", "b"), high_watermark=1)
    waiting = follower.purgatory.add(1, Delayed(), None)
    assert await begun_within(follower, 5, 9) is Outcome.GOES_ON
    log = follower.log
    assert (log.log_start_offset, log.log_end_offset, follower.high_watermark) == (5, 5, 5)
    with pytest.raises(ApiError) as error:
        await waiting
    assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert said(caplog) == [
        (
            "WARNING",
            "t-0: restarts at offset 5: broker 2 has nothing before it, and this log ended at 2",
        ),
    ]


@pytest.mark.parametrize(("start", "end"), [(0, 2), (2, 2), (2, 9)])
async def test_a_log_that_ends_within_the_leaders_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: int, end: int
) -> None:
    follower = following(tmp_path, batch("a"), batch("b", offset=1), high_watermark=1)
    assert await begun_within(follower, start, end) is Outcome.GOES_ON
    log = follower.log
    assert (log.log_start_offset, log.log_end_offset, follower.high_watermark) == (0, 2, 1)
    assert said(caplog) == []


async def test_a_log_that_cannot_be_cut_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    follower = following(tmp_path, batch("a", "b"))
    monkeypatch.setattr(Log, "truncate_to", broken)
    assert await begun_within(follower, 0, 1) is Outcome.FAILED
    assert said(caplog)[-1] == ("ERROR", "t-0: cannot follow broker 2: Input/output error")


# The log is cut in a thread


async def test_the_loop_goes_on_while_a_log_is_cut_and_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, appends, retention, compaction: none of them meets a half-cut log."""
    follower = following(tmp_path, batch("a", epoch=1), batch("b", offset=1, epoch=2), high_watermark=1)
    log = follower.log
    compaction = Compaction(log, 0, now_ms=NOW_MS)
    gate = HeldThread(monkeypatch, Segment, "truncate")
    assert follower.answered(fetched(diverging_epoch=EpochEndOffset(1, 1))) is Outcome.TRUNCATING
    log.config = replace(log.config, retention_ms=1, segment_ms=1)
    before = list(log.segments)

    def nothing_happens() -> None:
        with pytest.raises(ApiError, match="is being truncated") as refusal:
            log.read(0, 1000, upper=1, min_one=True)
        assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(ApiError, match="is being truncated"):
            log.append(batch("c"), leader_epoch=3, now_ms=NOW_MS)
        assert log.delete_old_segments(2 * NOW_MS) == 0
        log.roll_if_old(2 * NOW_MS)
        compaction.finish()
        assert (list(log.segments), log.first_dirty_offset) == (before, 0)

    nothing_happens()  # before the thread begins
    await gate.reached()
    nothing_happens()
    assert follower.truncation is not None
    gate.open()
    assert await follower.truncation is Outcome.GOES_ON
    assert not gate.was_called_on_the_loop
    assert (log.log_end_offset, follower.truncation) == (1, None)
    assert log.read(0, 1000, upper=1, min_one=True) is not None
    assert follower.answered(fetched(records=batch("c", offset=1, epoch=3))) is Outcome.GOES_ON


async def test_an_empty_log_that_starts_within_a_batch_is_made_anew_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restarting the log takes an fsync. DeleteRecords has moved the leader's start into the batch."""
    follower = following(tmp_path)
    assert await begun_within(follower, 2, 3) is Outcome.GOES_ON
    gate = HeldThread(monkeypatch, truncation, "truncate_fully_and_start_at")
    gate.open()
    data = fetched(records=batch("a", "b", "c", offset=0, epoch=3), high_watermark=3)
    assert await outcome(follower, data) is Outcome.GOES_ON
    assert len(gate.threads) == 1
    assert not gate.was_called_on_the_loop
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (0, 3)


async def test_a_damaged_batch_within_which_an_empty_log_would_start_is_refused(tmp_path: Path) -> None:
    follower = following(tmp_path)
    assert await begun_within(follower, 2, 3) is Outcome.GOES_ON
    damaged = batch("a", "b", "c", offset=0, epoch=3)
    damaged[-1] ^= 0xFF
    assert await outcome(follower, fetched(records=damaged)) is Outcome.FAILED
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (2, 2)


async def test_a_producer_that_comes_while_its_records_are_cut_learns_that_nobody_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = following(tmp_path, batch("a", epoch=1), batch("b", "c", offset=1, epoch=2))
    gate = HeldThread(monkeypatch, Segment, "truncate")
    assert follower.answered(fetched(diverging_epoch=EpochEndOffset(1, 1))) is Outcome.TRUNCATING
    await gate.reached()
    waiting = follower.purgatory.add(2, Delayed(), None)
    assert follower.truncation is not None
    gate.open()
    await follower.truncation
    with pytest.raises(ApiError) as error:
        await waiting
    assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


# Logs that no leader has confirmed


def unconfirmed(folder: Path) -> tuple[Follower, list[Follower]]:
    """It was a stray, with three records; also the followers whose logs differ from the leader's."""
    found: list[Follower] = []
    log = open_log(folder / "t-0", batch("a", epoch=1), batch("b", "c", offset=1, epoch=2))
    log.unconfirmed = True
    (log.directory / STRAY_NOTE).touch()
    record = topic("t", led_by(THEM, epoch=3))
    return Follower(record, 0, log, 0, Purgatory(), differs=found.append), found


@pytest.mark.parametrize("response", ["diverges", "ends before", "begins after"])
def test_an_unconfirmed_log_is_not_truncated(tmp_path: Path, response: str) -> None:
    follower, found = unconfirmed(tmp_path)
    for _ in range(2):
        if response == "diverges":
            outcome = follower.answered(fetched(diverging_epoch=EpochEndOffset(1, 1)))
        else:
            outcome = follower.begin_within(*((0, 2) if response == "ends before" else (4, 6)))
        assert outcome is Outcome.FAILED
        assert follower.truncation is None
    assert (follower.log.log_end_offset, found) == (3, [follower])


@pytest.mark.parametrize(
    ("start", "end"), [(0, 3), (3, 6)], ids=["ends with the leader's", "ends where it begins"]
)
def test_an_unconfirmed_log_within_the_leaders_is_compared_with_it(
    tmp_path: Path, start: int, end: int
) -> None:
    follower, found = unconfirmed(tmp_path)
    assert follower.begin_within(start, end) is Outcome.GOES_ON
    assert found == []


@pytest.mark.parametrize(("compared", "mirror_source"), [(2, ""), (3, "cluster/topic"), (3, "")])
async def test_truncation_spares_log_older_than_comparison(
    tmp_path: Path, compared: int, mirror_source: str
) -> None:
    """The log's last epoch is 2. A mirror's replica has its source's epochs."""
    found: list[Follower] = []
    log = open_log(tmp_path / "t-0", batch("a", epoch=1), batch("b", "c", offset=1, epoch=2))
    log.config = replace(log.config, mirror_source=mirror_source)
    record = topic("t", replace(led_by(THEM, epoch=3), compared=compared))
    follower = Follower(record, 0, log, 0, Purgatory(), differs=found.append)
    is_kept = compared == 3 and not mirror_source
    result = follower.answered(fetched(diverging_epoch=EpochEndOffset(1, 1)))
    assert result is (Outcome.FAILED if is_kept else Outcome.TRUNCATING)
    if follower.truncation is not None:
        await follower.truncation
    assert (log.log_end_offset, found) == ((3, [follower]) if is_kept else (1, []))


async def test_slow_new_replica_starts_again_when_its_leader_deletes_what_it_copied(tmp_path: Path) -> None:
    """It copies records from before the comparison of logs: they are no other history, and no stray."""
    found: list[Follower] = []
    record = topic("t", replace(led_by(THEM, epoch=3), compared=3))
    follower = Follower(record, 0, open_log(tmp_path / "t-0"), 0, Purgatory(), differs=found.append)
    for _ in range(2):
        start = follower.log.log_end_offset
        follower.request(1000)
        copied = batch("a", "b", offset=start, epoch=1)
        assert follower.answered(fetched(0, copied)) is Outcome.GOES_ON
        assert follower.begin_within(start + 10, start + 20) is Outcome.TRUNCATING
        assert follower.truncation is not None
        await follower.truncation
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (start + 10, start + 10)
    assert found == []


async def test_response_to_a_leader_before_the_comparison_confirms_no_log(tmp_path: Path) -> None:
    found: list[Follower] = []
    log = open_log(tmp_path / "t-0", batch("a", epoch=1), batch("b", "c", offset=1, epoch=2))
    record = topic("t", led_by(THEM, epoch=3))
    follower = Follower(record, 0, log, 0, Purgatory(), differs=found.append)
    follower.request(1000)
    follower.follow(replace(led_by(THEM, epoch=9), compared=9))
    assert follower.answered(fetched()) is Outcome.NOTHING_NEW
    assert follower.answered(fetched(diverging_epoch=EpochEndOffset(1, 1))) is Outcome.FAILED
    assert (log.log_end_offset, found) == (3, [follower])


async def test_a_log_that_the_leader_has_is_confirmed(tmp_path: Path) -> None:
    follower, found = unconfirmed(tmp_path)
    assert follower.answered(fetched(diverging_epoch=EpochEndOffset(2, 3))) is not Outcome.FAILED
    if follower.truncation is not None:
        await follower.truncation
    assert follower.answered(fetched()) is Outcome.NOTHING_NEW
    assert not follower.log.unconfirmed
    assert not (follower.log.directory / STRAY_NOTE).exists()
    assert await outcome(follower, fetched(diverging_epoch=EpochEndOffset(1, 1))) is Outcome.GOES_ON
    assert (follower.log.log_end_offset, found) == (1, [])
