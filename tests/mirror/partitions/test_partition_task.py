"""A task's numbers: acknowledgements when responses come in any order, fail, or never come."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from millstream_kafka.batch import INT32_MAX, advance_sequence
from millstream_mirror.kafka.progress import LastBatch, Progress
from millstream_mirror.partitions.partition_task import (
    RECORD_TOO_LARGE,
    UNKNOWN_AFTER_MS,
    PartitionTask,
    SentRequest,
)
from millstream_mirror.partitions.task_state import Skip
from millstream_mirror.records.rewrite import Outgoing

MARKER = LastBatch(116, 7, 0)
START = Progress(100, 7, 0, INT32_MAX - 20, 0, "topic", "cluster", 0)


def task() -> PartitionTask:
    made = PartitionTask("t", 0, "t", START, committed=START)
    made.end_recovery()
    return made


def batches(of: PartitionTask, *sizes: int) -> list[Outgoing]:
    made, offset, sequence = [], of.position, of.sequence
    for size in sizes:
        following = advance_sequence(sequence, size)
        made.append(Outgoing(memoryview(bytes(size)), 0, sequence, following, offset + size, size))
        offset, sequence = offset + size, following
    return made


def test_progress_follows_order_of_requests() -> None:
    of = task()
    first, second = of.send(batches(of, 10)), of.send(batches(of, 10, 5))
    of.succeeded(second, 10)
    assert (of.acknowledged, of.to_commit()) == (START, None)
    of.succeeded(first, 0)
    assert (of.acknowledged.offset, of.acknowledged.sequence) == (125, 4)
    assert of.acknowledged.target_offset == 25
    assert of.bytes_in_flight == 0


def test_failure_voids_later_requests_and_repeats_numbers() -> None:
    of = task()
    first, second, third = (of.send(batches(of, 10)) for _ in range(3))
    of.succeeded(first, 0)
    of.succeeded(third, 20)
    of.fail("lost", second)
    assert not of.in_flight
    assert not of.may_fetch(1 << 20)
    of.rewind(of.acknowledged)
    assert (of.position, of.sequence) == (110, INT32_MAX - 10)
    assert of.may_fetch(1 << 20)
    of.send(batches(of, 1))
    assert not of.may_fetch(1 << 20), "one batch first, to see whether the target is in step"


def test_error_ends_once_target_has_everything() -> None:
    of = task()
    of.fail("the batch is too large", reason=RECORD_TOO_LARGE)
    of.rewind(of.acknowledged)
    of.observe_end(110)
    assert (of.error, of.reason) == ("the batch is too large", RECORD_TOO_LARGE)
    sent = of.send(batches(of, 10))
    of.observe_end(110)
    of.succeeded(sent, 0)
    assert (of.error, of.reason) == ("", "")
    of.fail("the target is away")
    of.observe_end(110)
    assert of.error == "the target is away", "nothing was fetched since"
    of.rewind(of.acknowledged)
    of.observe_end(110)
    assert of.error == ""


def test_records_in_target_are_skipped() -> None:
    of = task()
    of.skip = Skip(advance_sequence(of.sequence, 15))
    rest = of.skip_present(batches(of, 10, 5, 5), 120)
    assert rest is not None
    assert [batch.records for batch in rest] == [5]
    assert of.acknowledged.offset == 115
    assert of.skip is None


def test_skipping_ends_at_targets_end() -> None:
    of = task()
    of.skip = Skip(advance_sequence(of.sequence, 15), 40)
    of.skip_present(batches(of, 10, 5, 5), 120)
    assert of.acknowledged.target_offset == 40, "others may have written there, too"
    assert of.offsets.find(115) is None, "its last records are searched for"
    assert (of.offsets.start.offset, of.offsets.start.target_offset) == (115, 40)


def test_task_is_new_until_caught_up_once() -> None:
    of = PartitionTask("t", 0, "t", replace(START, is_new=True), committed=START)
    of.end_recovery()
    of.observe_end(110)
    sent = of.send(batches(of, 10))
    assert of.acknowledged.is_new
    of.succeeded(sent, 0)
    assert not of.acknowledged.is_new
    committed = of.to_commit()
    assert committed is not None
    assert not committed.is_new
    of.observe_end(200)
    assert not of.acknowledged.is_new


def test_number_inside_batch_does_not_fit() -> None:
    of = task()
    of.skip = Skip(advance_sequence(of.sequence, 12))
    assert of.skip_present(batches(of, 10, 5), 115) is None


def test_omitted_offsets_count_after_acknowledgement() -> None:
    of = task()
    sent = of.send(batches(of, 10))
    of.moved_on(117, MARKER)
    assert of.acknowledged.offset == 100
    of.succeeded(sent, 0)
    assert (of.acknowledged.offset, of.acknowledged.sequence) == (117, INT32_MAX - 10)
    assert of.acknowledged.last == MARKER


@pytest.mark.parametrize("seed", range(20))
def test_random_responses_acknowledge_only_stored_records(seed: int) -> None:
    """The target accepts only the next number; responses get lost and come in any order."""
    dice = random.Random(seed)
    of, taken = task(), START.sequence
    stored: list[int] = []
    open_requests: list[tuple[SentRequest, bool]] = []
    for _ in range(300):
        if of.may_fetch(100) and dice.random() < 0.6:
            group = batches(of, *(dice.randint(1, 5) for _ in range(1 if of.probing else dice.randint(1, 3))))
            sent, arrives = of.send(group), dice.random() < 0.9
            first, last = group[0].base_sequence, group[-1].next_sequence
            in_step = first == taken
            repeated = not in_step and ((taken - last) & INT32_MAX) < 1 << 20
            if arrives and in_step:
                stored += range(sent.next_offset - sent.records, sent.next_offset)
                taken = last
            open_requests.append((sent, arrives and (in_step or repeated)))
        elif open_requests and dice.random() < 0.7:
            sent, good = open_requests.pop(dice.randrange(len(open_requests)))
            if good and dice.random() < 0.9:
                of.succeeded(sent, 0)
            else:
                of.fail("lost", sent)
        if of.has_failed and not of.in_flight:
            open_requests.clear()
            of.rewind(of.acknowledged)
            of.skip = Skip(taken) if taken != of.sequence else None
            while of.skip is not None:  # re-read the source in batches of one record
                rest = of.skip_present(batches(of, 1), of.position + 1)
                assert rest is not None
        assert of.acknowledged.offset <= 100 + len(stored)
    assert stored == list(range(100, 100 + len(stored)))
    assert len(stored) > 50


def test_lag_is_age_of_oldest_missing_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("millstream_mirror.partitions.partition_task.time.time", lambda: now)
    of = task()
    of.observe_end(100)
    for second in range(100):
        now += 1
        sent = of.send(batches(of, 10))
        of.observe_end(of.position + 10)  # ten records arrive before the last ten are acknowledged
        of.succeeded(sent, 10 * second)
        assert (of.lag, of.lag_seconds(int(now * 1000))) == (10, 0)
        now += 1
        assert of.lag_seconds(int(now * 1000)) == 1


def test_lag_is_unknown_without_reports_of_source() -> None:
    """As when the source's broker is out of reach: that all was mirrored a minute ago says nothing about now."""
    of = task()
    assert of.is_lag_unknown(0), "it was never seen"
    of.observe_end(100)
    now = of.observed_ms
    assert not of.is_lag_unknown(now + UNKNOWN_AFTER_MS)
    assert of.is_lag_unknown(now + UNKNOWN_AFTER_MS + 1)
    of.observe_end(200)
    assert not of.is_lag_unknown(now + 10 * UNKNOWN_AFTER_MS), "it is behind in any case"
    of.observe_end(100)
    of.reason = RECORD_TOO_LARGE
    assert not of.is_lag_unknown(now + 10 * UNKNOWN_AFTER_MS), "it is known why it waits"
