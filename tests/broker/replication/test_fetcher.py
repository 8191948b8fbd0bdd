"""The fetches from one leader, request by request: the test answers for the leader and moves the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.config import BrokerConfig
from millstream_broker.coordination import BrokerRecord
from millstream_broker.delayed_produce import Delayed, Purgatory
from millstream_broker.log import truncation
from millstream_broker.log.segment import Segment
from millstream_broker.replication import fetcher as fetcher_module
from millstream_broker.replication.fetcher import PATIENCE_S, Fetcher
from millstream_broker.replication.follower import Follower, Outcome
from millstream_broker.replication.throttle import Throttle
from millstream_harness.held_thread import HeldThread
from millstream_harness.replica import (
    NOW_MS,
    THEM,
    US,
    Call,
    Clock,
    PlayedPeers,
    asked,
    batch,
    broker_record,
    fetched,
    led_by,
    open_log,
    response,
    topic,
    turns,
)
from millstream_kafka.protocol import fetch, list_offsets
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import (
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    PartitionData,
)
from millstream_kafka.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

RATE = 1000
"""Bytes a second that throttled replicas may fetch."""


class Fetching:
    """Broker 1, which follows partitions of `t` that broker 2 leads."""

    def __init__(self, folder: Path, clock: Clock, config: Mapping[str, str]) -> None:
        self.folder = folder
        self.clock = clock
        self.peers = PlayedPeers()
        self.leader: BrokerRecord | None = broker_record(THEM)
        self.config = BrokerConfig(config)
        self.fetcher = Fetcher(self.peers, THEM, self.config, lambda: self.leader, Throttle(lambda: RATE))  # type: ignore[arg-type]

    def follow(self, *indexes: int, isr: tuple[int, ...] = (US, THEM)) -> list[Follower]:
        followers = []
        for index in indexes:
            record = topic("t", *[led_by(THEM, epoch=3, isr=isr)] * (index + 1))
            log = open_log(self.folder / f"t-{index}")
            followers.append(Follower(record, index, log, 0, Purgatory()))
            self.fetcher.add(followers[-1])
        return followers

    async def asked(self) -> Call:
        return await self.peers.asked()

    async def answered(self, response: FetchResponse) -> Call:
        """Answer the request that has come; returns the next one."""
        (await self.asked()).answer(response)
        return await self.asked()


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@contextlib.asynccontextmanager
async def fetching(folder: Path, clock: Clock, *indexes: int, **config: str) -> AsyncIterator[Fetching]:
    found = Fetching(folder, clock, {key.replace("_", "."): value for key, value in config.items()})
    found.follow(*indexes)
    found.fetcher.start()
    try:
        yield found
    finally:
        await found.fetcher.close()


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name.startswith("millstream")]


def session_of(call: Call) -> tuple[int, int]:
    return call.request.session_id, call.request.session_epoch


def partitions_of(call: Call) -> list[int]:
    return sorted(index for _, index in asked(call.request))


def failed(index: int = 0, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> PartitionData:
    return PartitionData(index, code)


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
            topics=[fetch.FetchTopic("t", expected)],
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
        assert call.request.forgotten_topics_data == [ForgottenTopic("t", [0])]
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


# Not waiting for records where there is more to ask


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
    """The first batch is sent whatever its size."""
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
    unreachable = ("WARNING", "broker 2 cannot be fetched from: leader:9092: Connection refused")
    for attempts in (1, 2, 3):
        await clock.reach(attempts - 0.0005)
        assert len(world.peers.connections) == attempts
        assert said(caplog) == [unreachable]
        await clock.reach(attempts)
    world.peers.refusal = None
    await clock.advance(1)
    call = await world.asked()
    again = ("INFO", "broker 2 can be fetched from again")
    assert said(caplog) == [unreachable, again]
    call.connection.abandon()
    await clock.advance(1)
    await world.asked()
    lost = ("WARNING", "broker 2 cannot be fetched from: leader:9092: the connection was closed here")
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
    """For the leader takes a connection for one of the incarnation that made it."""
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
    """Its machine may be gone, and the request to its former self never be answered."""
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
                "broker 2 cannot be fetched from: leader:9092: this broker has registered again since",
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


# Partitions that fail


async def test_a_partition_that_fails_leaves_the_session_and_comes_back_later(
    tmp_path: Path, clock: Clock
) -> None:
    """The pause is doubled each time, up to replica.fetch.backoff.ms."""
    async with fetching(tmp_path, clock, 0, 1, replica_fetch_wait_max_ms="5000") as world:
        for pause_ms in (20, 40, 80, 160, 320, 640, 1000, 1000):
            call, due = await world.answered(response(failed(0))), clock.now + pause_ms / 1000
            assert partitions_of(call) == []
            assert call.request.forgotten_topics_data == [ForgottenTopic("t", [0])]
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


# Offsets that the leader does not have


def log_offset(offset: int, code: ErrorCode = ErrorCode.NONE) -> ListOffsetsResponse:
    found = ListOffsetsPartitionResponse(0, code, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [found])])


def where(timestamp: int) -> ListOffsetsRequest:
    asked = ListOffsetsPartition(0, 3, timestamp)
    return ListOffsetsRequest(US, topics=[ListOffsetsTopic("t", [asked])])


OUT_OF_RANGE = PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE)


async def test_a_follower_whose_offset_the_leader_does_not_have_goes_on_within_its_log(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        (follower,) = world.fetcher.followers
        earliest = await world.answered(response(OUT_OF_RANGE))
        assert (earliest.api, earliest.version) == (list_offsets.API, None)
        assert earliest.request == where(list_offsets.EARLIEST)
        earliest.answer(log_offset(5))
        latest = await world.asked()
        assert latest.request == where(list_offsets.LATEST)
        gate = HeldThread(monkeypatch, truncation, "start_anew")
        latest.answer(log_offset(9))
        await gate.reached()
        assert follower.cutting is not None
        gate.open()
        await follower.cutting
        call = await world.asked()
        assert follower.log.log_start_offset == 5
        assert asked(call.request)["t", 0].fetch_offset == 5


async def test_a_leader_that_does_not_say_where_its_log_is_is_asked_again_later(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        call = await world.answered(response(OUT_OF_RANGE))
        call.answer(log_offset(0, ErrorCode.KAFKA_STORAGE_ERROR))
        assert partitions_of(await world.asked()) == []
        assert said(caplog) == [("WARNING", "t-0: cannot follow broker 2: it answers KAFKA_STORAGE_ERROR")]


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_follower_that_is_removed_meanwhile_stays_as_it_is(
    tmp_path: Path, clock: Clock, answers: int
) -> None:
    async with fetching(tmp_path, clock, 0, 1) as world:
        gone, kept = world.fetcher.followers
        call = await world.answered(response(OUT_OF_RANGE, fetched(1, batch("a", epoch=3))))
        if answers == 2:
            call.answer(log_offset(5))
            call = await world.asked()
        world.fetcher.remove(gone.key)
        call.answer(log_offset(5))
        assert partitions_of(await world.asked()) == [1]
        assert (gone.log.log_end_offset, kept.log.log_end_offset) == (0, 1)


async def test_a_follower_that_follows_a_new_epoch_meanwhile_asks_anew(tmp_path: Path, clock: Clock) -> None:
    async with fetching(tmp_path, clock, 0) as world:
        (follower,) = world.fetcher.followers
        call = await world.answered(response(OUT_OF_RANGE))
        world.fetcher.remove(follower.key)
        follower.follow(replace(follower.record, leader_epoch=4))
        world.fetcher.add(follower)
        call.answer(log_offset(5))
        call = await world.asked()
        assert follower.log.log_end_offset == 0
        assert asked(call.request)["t", 0].current_leader_epoch == 4


# A log that is cut


PARTED = fetched(diverging_epoch=EpochEndOffset(1, 1))


async def begun_to_cut(world: Fetching, gate: HeldThread) -> tuple[Follower, asyncio.Task[Outcome]]:
    """The first of the followers, which has two records too many, and whose leader says so."""
    follower = next(iter(world.fetcher.followers))
    follower.log.append_as_follower(batch("a", epoch=1), now_ms=NOW_MS)
    follower.log.append_as_follower(batch("b", "c", offset=1, epoch=2), now_ms=NOW_MS)
    (await world.asked()).answer(response(PARTED))
    await gate.reached()
    assert follower.cutting is not None
    return follower, follower.cutting


async def test_a_cut_log_is_asked_for_from_its_new_end(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = HeldThread(monkeypatch, Segment, "truncate")
    async with fetching(tmp_path, clock, 0) as world:
        _, cutting = await begun_to_cut(world, gate)
        gate.open()
        assert await cutting is Outcome.GOES_ON
        assert asked((await world.asked()).request)["t", 0].fetch_offset == 1


async def test_a_log_that_is_being_cut_is_not_asked_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = HeldThread(monkeypatch, Segment, "truncate")
    async with fetching(tmp_path, clock, 0) as world:
        _, cutting = await begun_to_cut(world, gate)
        assert await world.peers.is_asked_nothing()
        gate.open()
        await cutting
        assert partitions_of(await world.asked()) == [0]


async def test_a_cut_ends_though_its_fetcher_is_closed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for the records learns what became of them, and the log can be used again."""
    gate = HeldThread(monkeypatch, Segment, "truncate")
    async with fetching(tmp_path, clock, 0) as world:
        follower, cutting = await begun_to_cut(world, gate)
        waiting = follower.purgatory.add(2, Delayed(), None)
        await world.fetcher.close()
        assert not cutting.done()
        gate.open()
        assert await cutting is Outcome.GOES_ON
        assert (follower.log.log_end_offset, follower.log.truncating) == (1, False)
        with pytest.raises(ApiError):
            await waiting


async def test_a_follower_that_is_removed_while_it_is_cut_is_not_asked_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = HeldThread(monkeypatch, Segment, "truncate")
    async with fetching(tmp_path, clock, 0, 1) as world:
        follower, cutting = await begun_to_cut(world, gate)
        world.fetcher.remove(follower.key)
        gate.open()
        await cutting
        assert partitions_of(await world.asked()) == []


async def test_the_rest_of_an_answer_counts_though_a_cut_follower_is_removed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = HeldThread(monkeypatch, Segment, "truncate")
    async with fetching(tmp_path, clock, 0, 1) as world:
        cut, other = world.fetcher.followers
        cut.log.append_as_follower(batch("a", "b", epoch=2), now_ms=NOW_MS)
        (await world.asked()).answer(response(PARTED, fetched(1, batch("a", epoch=3))))
        await gate.reached()
        assert cut.cutting is not None
        world.fetcher.remove(cut.key)
        gate.open()
        await cut.cutting
        assert partitions_of(await world.asked()) == [1]
        assert other.log.log_end_offset == 1


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
        assert call.request.forgotten_topics_data == [ForgottenTopic("t", [0])]
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


async def test_a_moment_too_short_to_count_does_not_hold_a_replica_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "TURN_S", BYTES / RATE + 0.1)
    async with fetching(tmp_path, clock) as world:
        (moved,) = world.follow(0, isr=(THEM,))
        moved.is_throttled = True
        call = await world.answered(response(fetched(0, batch("x" * 3000, epoch=3))))
        assert partitions_of(call) == [0]


# Turns of the loop


async def test_a_long_answer_lets_others_have_their_turn(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each 20 ms, here of three partitions."""
    times = iter(range(100_000))
    monkeypatch.setattr(fetcher_module, "perf_counter", lambda: next(times) * 0.008)
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
