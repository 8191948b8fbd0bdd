"""A fetcher's connection to its leader: lost, refused, and renewed when either broker registers again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millstream_harness.fetching import Fetching, fetching, said, session_of
from millstream_harness.replica import THEM, Clock, asked, batch, broker_record, fetched, response
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchResponse,
)

# Connections


async def test_a_connection_has_the_limits_of_the_configuration(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0, replica_socket_timeout_ms="30000") as world:
        await world.asked()
        assert world.peers.connections == [
            (
                world.leader,
                "millstream-follower-1",
                {"timeout_s": 30.0, "max_response_bytes": 128 * 1024 * 1024},
            )
        ]


async def test_a_response_may_be_twice_as_large_as_asked_for(tmp_path: Path, clock: Clock) -> None:
    """A first batch of any size is sent."""
    most = 200 * 1024 * 1024
    async with fetching(tmp_path, clock, 0, replica_fetch_response_max_bytes=str(most)) as world:
        await world.asked()
        assert world.peers.connections[0][2]["max_response_bytes"] == 2 * most


async def test_a_leader_that_cannot_be_reached_is_tried_again_and_said_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = Fetching(tmp_path, clock, {})
    world.peers.refuse()
    world.follow(0)
    world.fetcher.start()
    await turns()
    unreachable = ("WARNING", "cannot fetch from broker 2: leader:9092: Connection refused")
    for attempts in (1, 2, 3):
        await clock.reach(attempts - 0.0005)
        assert len(world.peers.connections) == attempts
        assert said(caplog) == [unreachable]
        await clock.reach(attempts)
    world.peers.refusal = None
    await clock.advance(1)
    call = await world.asked()
    again = ("INFO", "fetching from broker 2 again")
    assert said(caplog) == [unreachable, again]
    call.connection.abandon()
    await clock.advance(1)
    await world.asked()
    lost = ("WARNING", "cannot fetch from broker 2: leader:9092: the connection was closed here")
    assert said(caplog) == [unreachable, again, lost, again]
    await world.fetcher.close()


async def test_a_leader_that_is_not_registered_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    world = Fetching(tmp_path, clock, {})
    world.leader = None
    world.follow(0)
    world.fetcher.start()
    await clock.advance(5)
    assert world.peers.connections == []
    world.leader = broker_record(THEM, epoch=4)
    world.fetcher.wake()
    await world.asked()
    assert [one[0] for one in world.peers.connections] == [world.leader]
    await world.fetcher.close()


async def test_a_broker_that_has_registered_again_connects_anew(tmp_path: Path, clock: Clock) -> None:
    """The leader ties a connection to the incarnation that opened it."""
    async with fetching(tmp_path, clock, 0) as world:
        first = await world.asked()
        world.peers.present_epoch = 1
        first.answer(response())
        second = await world.asked()
        assert first.connection.is_closed
        assert second.connection is not first.connection
        assert session_of(second) == (0, 0)


async def test_a_leader_that_has_registered_again_is_connected_to_at_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's old machine may be gone, and never respond to the open request."""
    async with fetching(tmp_path, clock, 0) as world:
        first = await world.asked()
        world.fetcher.wake()
        assert await world.peers.is_asked_nothing(), "it has not"
        world.leader = None
        world.fetcher.wake()
        assert await world.peers.is_asked_nothing(), "it may have lost its session only"
        world.leader = broker_record(THEM, epoch=4)
        world.fetcher.wake()
        second = await world.asked()
        assert first.connection.is_closed
        assert session_of(second) == (0, 0)
        world.leader = broker_record(THEM, epoch=5)
        second.answer(response(fetched(records=batch("a", epoch=3))))
        third = await world.asked()
        assert second.connection.is_closed
        assert asked(third.request)["t", 0].fetch_offset == 1
        assert said(caplog) == []


async def test_a_leader_that_knows_of_a_later_registration_is_connected_to_anew(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        call = await world.asked()
        call.answer(FetchResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        await turns()
        assert said(caplog) == [
            (
                "WARNING",
                "cannot fetch from broker 2: leader:9092: this broker has registered again since",
            )
        ]
        await clock.advance(1)
        assert call.connection.is_closed
        assert session_of(await world.asked()) == (0, 0)


async def test_an_unexpected_error_does_not_end_the_fetches(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        call = await world.asked()
        call.fail(RuntimeError("a bug"))
        assert await world.peers.is_asked_nothing()
        assert said(caplog) == [("ERROR", "fetcher failed, from broker 2, retrying")]
        await clock.advance(1)
        assert call.connection.is_closed
        await world.asked()


async def test_close_ends_the_fetches(tmp_path: Path, clock: Clock) -> None:
    world = Fetching(tmp_path, clock, {})
    await world.fetcher.close()
    world.follow(0)
    world.fetcher.start()
    call = await world.asked()
    await world.fetcher.close()
    assert call.connection.is_closed
    await clock.advance(5)
    assert len(world.peers.connections) == 1
