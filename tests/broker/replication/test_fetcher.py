"""The fetches from one leader, request by request: sessions, partitions that fail, throttled replicas."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from millstream_broker.replication import fetcher as fetcher_module
from millstream_broker.replication.fetcher import PATIENCE_S
from millstream_harness.fetching import RATE, failed, fetching, partitions_of, said, session_of
from millstream_harness.replica import (
    THEM,
    US,
    Clock,
    asked,
    batch,
    fetched,
    response,
)
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
)

# Sessions


async def test_the_first_request_names_all_partitions(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0, 1) as world:
        call = await world.asked()
        config = world.config
        assert call.api is fetch.API
        most = config.integer("replica.fetch.max.bytes")
        expected = [one.request(most) for one in world.fetcher.followers]
        assert call.request == FetchRequest(
            replica_id=US,
            max_wait_ms=config.integer("replica.fetch.wait.max.ms"),
            min_bytes=config.integer("replica.fetch.min.bytes"),
            max_bytes=config.integer("replica.fetch.response.max.bytes"),
            session_id=0,
            session_epoch=0,
            topics=[fetch.FetchTopic("t", partitions=expected)],
        )


async def test_later_requests_of_a_session_name_what_changed(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0, 1) as world:
        call = await world.answered(response(fetched(1, batch("a", "b", epoch=3)), session_id=7))
        assert session_of(call) == (7, 1)
        assert {key: one.fetch_offset for key, one in asked(call.request).items()} == {("t", 1): 2}
        call.answer(response(session_id=7))
        call = await world.asked()
        assert session_of(call) == (7, 2)
        assert partitions_of(call) == []


async def test_a_leader_that_keeps_no_session_is_told_everything_each_time(
    tmp_path: Path, clock: Clock
) -> None:
    async with fetching(tmp_path, clock, 0, 1, 2) as world:
        news = fetched(1, batch("a", epoch=3))
        call = await world.answered(response(news, failed(2), session_id=0))
        assert session_of(call) == (0, 0)
        assert partitions_of(call) == [0, 1], "but for what has failed"


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_a_session_that_the_leader_has_lost_is_begun_anew_at_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    async with fetching(tmp_path, clock, 0, 1) as world:
        call = await world.answered(response(failed(1)))
        assert session_of(call) == (7, 1)
        caplog.clear()
        call.answer(FetchResponse(error_code=code))
        call = await world.asked()
        assert session_of(call) == (0, 0)
        assert partitions_of(call) == [0], "what has failed waits on"
        assert len(world.peers.connections) == 1
        assert said(caplog) == []


async def test_another_error_of_the_leader_is_said_and_tried_again_after_a_pause(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        call = await world.answered(response())
        call.answer(FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        assert await world.peers.is_asked_nothing()
        assert said(caplog) == [("WARNING", "broker 2 answers a fetch with UNKNOWN_SERVER_ERROR")]
        await clock.advance(1)
        call = await world.asked()
        assert (session_of(call), partitions_of(call)) == ((0, 0), [0])
        assert len(world.peers.connections) == 1


async def test_a_partition_that_is_removed_is_forgotten_and_its_answer_ignored(
    tmp_path: Path, clock: Clock
) -> None:
    async with fetching(tmp_path, clock, 0, 1, 2) as world:
        gone, kept, _ = world.fetcher.followers
        call = await world.asked()
        for key in (gone.key, gone.key, ("unknown", 0)):
            world.fetcher.remove(key)
        assert len(world.fetcher) == 2
        call.answer(response(fetched(0, batch("a", epoch=3)), fetched(1, batch("b", epoch=3))))
        call = await world.asked()
        assert call.request.forgotten_topics_data == [ForgottenTopic("t", partitions=[0])]
        assert partitions_of(call) == [1]
        assert (gone.log.log_end_offset, kept.log.log_end_offset) == (0, 1)
        call.answer(response())
        assert (await world.asked()).request.forgotten_topics_data == []


async def test_an_answer_from_before_a_partition_was_added_anew_is_ignored(
    tmp_path: Path, clock: Clock
) -> None:
    async with fetching(tmp_path, clock, 0, 1) as world:
        first, _ = world.fetcher.followers
        call = await world.asked()
        world.fetcher.remove(first.key)
        world.fetcher.add(first)
        call.answer(response(fetched(0, batch("a", epoch=3)), fetched(1, batch("b", epoch=3))))
        call = await world.asked()
        assert first.log.log_end_offset == 0
        assert (partitions_of(call), call.request.forgotten_topics_data) == ([0, 1], [])


async def test_without_partitions_nothing_is_asked(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock) as world:
        assert await world.peers.is_asked_nothing()
        assert len(world.peers.connections) == 1
        (follower,) = world.follow(4)
        call = await world.asked()
        assert partitions_of(call) == [4]
        world.fetcher.remove(follower.key)
        call.answer(response())
        assert await world.peers.is_asked_nothing()


# No waiting while there is more to fetch


async def test_a_partition_that_is_added_does_not_wait_for_the_records_of_others(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with fetching(tmp_path, clock, 0) as world:
        call = await world.asked()
        for index in (1, 2):
            world.follow(index)
        assert await world.peers.is_asked_nothing(), "an answer may be on its way"
        await clock.advance(PATIENCE_S)
        assert call.connection.is_closed
        again = await world.asked()
        assert again.connection is not call.connection
        assert (session_of(again), partitions_of(again)) == ((0, 0), [0, 1, 2])
        assert said(caplog) == []


async def test_an_answer_that_comes_soon_keeps_the_connection(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        first = await world.asked()
        world.follow(1)
        first.answer(response())
        second = await world.asked()
        assert (session_of(second), partitions_of(second)) == ((7, 1), [1])
        await clock.advance(PATIENCE_S)
        assert not second.connection.is_closed


async def test_a_leader_that_cannot_be_reached_after_a_connection_was_given_up_is_left_in_peace(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        await world.asked()
        world.peers.refuse()
        world.follow(1)
        await clock.advance(PATIENCE_S)
        assert len(world.peers.connections) == 2
        assert len(said(caplog)) == 1
        await clock.advance(0.5)
        assert len(world.peers.connections) == 2


async def test_a_connection_that_is_lost_by_itself_is_no_reason_to_hurry(
    tmp_path: Path, clock: Clock
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        call = await world.asked()
        world.follow(1)
        call.answer(response())
        call = await world.asked()
        call.connection.abandon()
        assert await world.peers.is_asked_nothing()
        assert len(world.peers.connections) == 1
        await clock.advance(1)
        assert len(world.peers.connections) == 2


# Partitions that fail


async def test_a_partition_that_fails_leaves_the_session_and_comes_back_later(
    tmp_path: Path, clock: Clock
) -> None:
    """The pause doubles each time, up to replica.fetch.backoff.ms."""
    async with fetching(tmp_path, clock, 0, 1, replica_fetch_wait_max_ms="5000") as world:
        for pause_ms in (20, 40, 80, 160, 320, 640, 1000, 1000):
            call, due = await world.answered(response(failed(0))), clock.now + pause_ms / 1000
            assert partitions_of(call) == []
            assert call.request.forgotten_topics_data == [ForgottenTopic("t", partitions=[0])]
            assert call.request.max_wait_ms in (pause_ms, pause_ms + 1), "no longer than until it is due"
            await clock.reach(due - 0.0005)
            call.answer(response())
            call = await world.asked()
            assert partitions_of(call) == []
            await clock.reach(due)
            call.answer(response())
            call = await world.asked()
            assert partitions_of(call) == [0]
            world.peers.calls.append(call)


async def test_a_backoff_of_nothing_is_no_endless_loop(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0, replica_fetch_backoff_ms="0") as world:
        call = await world.answered(response(failed(0)))
        assert partitions_of(call) == []


async def test_a_wait_of_the_leader_is_as_configured_where_nothing_is_due_earlier(
    tmp_path: Path, clock: Clock
) -> None:
    async with fetching(tmp_path, clock, 0, 1, replica_fetch_wait_max_ms="5") as world:
        call = await world.answered(response(failed(0)))
        assert call.request.max_wait_ms == 5


async def test_a_change_of_the_cluster_is_a_reason_to_try_again_at_once(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0, 1) as world:
        call = await world.answered(response(failed(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        world.fetcher.wake()
        await clock.advance(PATIENCE_S)
        assert call.connection.is_closed
        assert partitions_of(await world.asked()) == [0, 1]


# Throttled replicas


BYTES = len(batch("x" * 3000, epoch=3))


async def test_a_throttled_replica_asks_for_a_seconds_worth_and_waits_for_what_it_took(
    tmp_path: Path, clock: Clock
) -> None:
    async with fetching(tmp_path, clock, replica_fetch_wait_max_ms="60000") as world:
        (moved,) = world.follow(0, isr=(THEM,))
        moved.is_throttled = True
        call = await world.asked()
        assert asked(call.request)["t", 0].partition_max_bytes == RATE
        call.answer(response(fetched(0, batch("x" * 3000, epoch=3))))
        call = await world.asked()
        assert call.request.forgotten_topics_data == [ForgottenTopic("t", partitions=[0])]
        assert call.request.max_wait_ms == BYTES * 1000 // RATE + 1
        await clock.advance(BYTES / RATE)
        call.answer(response())
        assert partitions_of(await world.asked()) == [0]


@pytest.mark.parametrize(
    ("is_throttled", "isr"), [(False, (THEM,)), (True, (US, THEM))], ids=["not listed", "in sync"]
)
async def test_other_replicas_are_not_held_back(
    tmp_path: Path, clock: Clock, is_throttled: bool, isr: tuple[int, ...]
) -> None:
    async with fetching(tmp_path, clock) as world:
        (follower,) = world.follow(0, isr=isr)
        follower.is_throttled = is_throttled
        call = await world.asked()
        assert asked(call.request)["t", 0].partition_max_bytes == world.config.integer(
            "replica.fetch.max.bytes"
        )
        call.answer(response(fetched(0, batch("x" * 3000, epoch=3))))
        assert partitions_of(await world.asked()) == [0]


@pytest.mark.parametrize("more_s", [0, 0.1])
async def test_a_moment_too_short_to_count_does_not_hold_a_replica_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, more_s: float
) -> None:
    monkeypatch.setattr(fetcher_module, "LEAST_PAUSE_S", BYTES / RATE + more_s)
    async with fetching(tmp_path, clock) as world:
        (moved,) = world.follow(0, isr=(THEM,))
        moved.is_throttled = True
        call = await world.answered(response(fetched(0, batch("x" * 3000, epoch=3))))
        assert partitions_of(call) == [0]


# Turns of the loop


async def test_a_long_answer_lets_others_have_their_turn(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop turns after every 3 ms, which here is every three partitions."""
    times = iter(range(100_000))
    monkeypatch.setattr(fetcher_module, "perf_counter", lambda: next(times) * 0.0012)
    async with fetching(tmp_path, clock, *range(9)) as world:
        call = await world.asked()
        followers = list(world.fetcher.followers)
        call.answer(response(*(fetched(index, batch("a", epoch=3)) for index in range(9))))
        taken = [0]
        while taken[-1] < 9:
            await asyncio.sleep(0)
            now = sum(one.log.log_end_offset for one in followers)
            taken += [now] if now != taken[-1] else []
        assert taken == [0, 3, 6, 9]
