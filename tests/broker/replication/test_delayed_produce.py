"""Producers that wait for replicas while the leader steps down."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from millstream_broker.replication.purgatory import Delayed, Purgatory
from millstream_harness.virtual_time import now, turns, virtual_time
from millstream_kafka.protocol.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_what_is_appended_may_be_kept_by_the_next_leader(code: ErrorCode, told: ErrorCode) -> None:
    """librdkafka must resend the same batch, which the next leader recognises; so it must not get NOT_LEADER."""
    purgatory = Purgatory()
    kept, waiting = purgatory.add(1, Delayed(), None), purgatory.add(2, Delayed(), None)
    purgatory.passed(2)
    purgatory.fail(code)
    await kept
    with pytest.raises(ApiError) as error:
        await waiting
    assert error.value.code is told
    assert not purgatory


async def test_what_is_cut_off_is_in_no_log() -> None:
    """Then NOT_LEADER is true, and the client may send the records in new batches; the others still wait."""
    purgatory = Purgatory()
    waiting = [purgatory.add(offset, Delayed(), None) for offset in (3, 1, 2)]
    purgatory.truncated(2)
    for one in (waiting[0], waiting[2]):
        with pytest.raises(ApiError) as error:
            await one
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert purgatory
    purgatory.passed(2)
    await waiting[1]


async def test_each_ends_when_its_time_is_up_and_the_others_wait_on() -> None:
    purgatory = Purgatory()
    late, soon, never = (
        purgatory.add(offset, Delayed(), timeout) for offset, timeout in ((1, 60_000), (2, 1), (3, None))
    )
    with pytest.raises(ApiError) as error:
        await soon
    assert error.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert (late.is_done, never.is_done) == (False, False)
    purgatory.passed(4)
    assert (late.is_done, never.is_done) == (True, True)


@virtual_time
async def test_a_deadline_that_is_reached_has_passed_and_leaves_no_timer() -> None:
    purgatory = Purgatory()
    waiting, forever = purgatory.add(1, Delayed(), 125), purgatory.add(2, Delayed(), None)
    await asyncio.sleep(1 / 8 - 1 / 16384)  # sums without rounding
    assert not waiting.is_done
    await asyncio.sleep(1 / 16384)
    await turns()
    at_once = purgatory.add(3, Delayed(), 0)
    await turns()
    assert (at_once.is_done, now()) == (True, 1 / 8)
    assert (waiting.is_done, forever.is_done, purgatory._timer) == (True, False, None)


def test_producers_that_wait_for_no_time_end_together() -> None:
    """The timer of a deadline that is due has no time of its own on uvloop."""

    async def play() -> None:
        purgatory = Purgatory()
        waiting = [purgatory.add(offset, Delayed(), 0) for offset in (1, 2, 3)]
        for one in waiting:
            with pytest.raises(ApiError) as error:
                await one
            assert error.value.code is ErrorCode.REQUEST_TIMED_OUT

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


async def test_whoever_stopped_waiting_is_not_told() -> None:
    delayed = Delayed()

    async def wait() -> None:
        await delayed

    waiting = asyncio.create_task(wait())
    await turns()
    waiting.cancel()
    await turns()
    delayed.end()
    assert waiting.cancelled()


async def test_whoever_names_a_function_is_told_in_the_step_that_ends_the_wait() -> None:
    told: list[str] = []
    before, after = Delayed(), Delayed()
    before.then(lambda: told.append("before"))
    before.end()
    assert told == ["before"]
    after.end(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    after.then(lambda: told.append("after"))
    assert told == ["before", "after"]
