"""The driver and time: a clock that fires early, and timers that end with the driver."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import Commit, LeavingMember, OffsetToCommit, Sync
from millstream_harness.group_drivers import SharedTopic, assembled, committing, drivers, joining
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import EncodeError

EARLY_S = 0.0015


class EarlySelector(selectors.DefaultSelector):
    """Never waits, but moves the clock to just before the requested time."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0 and not (ready := super().select(0)):
            self.now += max(timeout - EARLY_S, 0.0001)
            return ready
        return super().select(timeout)


class EarlyLoop(asyncio.SelectorEventLoop):
    """Calls timers up to 2 ms early, as a loop with a clock of whole milliseconds does (uvloop)."""

    def __init__(self) -> None:
        self.clock = EarlySelector()
        super().__init__(self.clock)
        self._clock_resolution = 0.002

    def time(self) -> float:
        return self.clock.now


def run(scene: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        runner.run(scene)


def test_timer_that_fires_early_does_not_leave_a_group_rebalancing() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        async with drivers(SharedTopic(), 1) as (driver,):
            leader, static = await assembled(driver)
            for generation in range(3, 13):
                # The static member does not rejoin: only the timer ends the rebalance, in ten seconds.
                begun = loop.time()
                async with asyncio.timeout(20):
                    joined = await driver.join(joining(leader.member_id))
                assert (joined.error, joined.generation) == (ErrorCode.NONE, generation)
                assert 9.99 < loop.time() - begun < 10.01
                sync = Sync("g", leader.member_id, generation, {})
                assert (await driver.sync(sync)).error is ErrorCode.NONE
            assert driver.describe("g").state is GroupState.STABLE
            assert len(driver.describe("g").members) == 2, static

    run(play())


def test_events_follow_a_deadline_that_is_due() -> None:
    """The timer of a deadline that is due has no time of its own on uvloop."""

    async def play() -> None:
        async with drivers(SharedTopic(), 1) as (driver,):
            driver._coordinator.next_deadline = lambda: 0  # type: ignore[method-assign]
            assert [driver._runtime.run(lambda: "answer") for _ in range(3)] == ["answer"] * 3

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


def test_the_clock_survives_a_timer_that_fails() -> None:
    """A group with a defect, or the check for expired positions, must not keep others' sessions alive."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        failures: list[str] = []
        loop.set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
        async with drivers(SharedTopic(), 1) as (driver,):
            await assembled(driver)
            coordinator = driver._coordinator
            advance = coordinator.advance

            def fail(now: int, wall_clock: int) -> None:
                coordinator.advance = advance  # type: ignore[method-assign]
                raise RuntimeError("one timer fails")

            coordinator.advance = fail  # type: ignore[method-assign]
            await asyncio.sleep(100)  # no event meanwhile, so only timers end the sessions, of a minute
            assert failures == ["one timer fails"]
            assert driver.describe("g").state is GroupState.EMPTY

    run(play())


def test_an_event_that_fails_leaves_no_reply_behind() -> None:
    async def play() -> None:
        async with drivers(SharedTopic(), 1) as (driver,):
            leader, _ = await assembled(driver)
            rejoining = asyncio.create_task(driver.join(joining(leader.member_id)))
            await asyncio.sleep(0)  # it waits for the static member

            def fail() -> None:
                driver._coordinator.answer_all(ErrorCode.NOT_COORDINATOR)
                raise RuntimeError("an event fails")

            with pytest.raises(RuntimeError, match="an event fails"):
                driver._runtime.run(fail)
            await asyncio.sleep(0)
            assert rejoining.done()

    run(play())


def test_what_cannot_be_written_leaves_no_group() -> None:
    """Such as a name with a lone surrogate; no request can contain one."""

    async def play() -> None:
        async with drivers(SharedTopic(), 1) as (driver,):
            with pytest.raises(EncodeError):
                await driver.join(replace(joining(), group_id="\ud800"))
            with pytest.raises(EncodeError):
                await driver.commit(replace(committing(1), group_id="\ud800"))
            assert driver.all() == []
            assert (await driver.commit(committing(1))) == {("t", 0): ErrorCode.NONE}
            (group,) = driver.all()
            with pytest.raises(EncodeError):
                await driver.commit(Commit("simple", [OffsetToCommit("\ud800", 0, 1)]))
            assert not group.commits_in_flight

    run(play())


def test_a_closed_driver_does_nothing_when_time_passes() -> None:
    async def play() -> None:
        topic = SharedTopic()
        async with drivers(topic, 1) as (driver,):
            await driver.join(joining())
            await driver.close()
            written = len(topic.batches)
            await asyncio.sleep(1_000)  # the member sends no SyncGroup: after 10 s it would be dropped
            assert len(topic.batches) == written

    run(play())


def test_an_event_after_the_driver_was_closed_sets_no_timer() -> None:
    async def play() -> None:
        topic = SharedTopic()
        async with drivers(topic, 1) as (driver,):
            await assembled(driver)
            await asyncio.sleep(15)  # nothing is due now before the sessions expire
            await driver.close()
            driver.leave("g", [LeavingMember("", "i")])
            written = len(topic.batches)
            await asyncio.sleep(1_000)  # the leader does not rejoin: after 10 s it would be dropped
            assert len(topic.batches) == written

    run(play())
