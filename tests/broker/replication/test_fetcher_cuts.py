"""A fetcher whose leader lacks the follower's offset: it moves into the leader's range, or cuts its log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.log import truncation
from millstream_broker.log.segment import Segment
from millstream_broker.replication.follower import Follower, Outcome
from millstream_broker.replication.purgatory import Delayed
from millstream_harness.fetching import Fetching, fetching, partitions_of, said
from millstream_harness.held_thread import HeldThread
from millstream_harness.replica import (
    NOW_MS,
    US,
    Clock,
    asked,
    batch,
    fetched,
    response,
)
from millstream_kafka.protocol import list_offsets
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import (
    EpochEndOffset,
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
        gate = HeldThread(monkeypatch, truncation, "truncate_fully_and_start_at")
        latest.answer(log_offset(9))
        await gate.reached()
        assert follower.truncation is not None
        gate.open()
        await follower.truncation
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
    """The first follower; it has two records too many, and its leader has said so."""
    follower = next(iter(world.fetcher.followers))
    follower.log.append_as_follower(batch("a", epoch=1), now_ms=NOW_MS)
    follower.log.append_as_follower(batch("b", "c", offset=1, epoch=2), now_ms=NOW_MS)
    (await world.asked()).answer(response(PARTED))
    await gate.reached()
    assert follower.truncation is not None
    return follower, follower.truncation


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
    """Waiting producers learn the fate of their records, and the log is usable again."""
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
        assert cut.truncation is not None
        world.fetcher.remove(cut.key)
        gate.open()
        await cut.truncation
        assert partitions_of(await world.asked()) == [1]
        assert other.log.log_end_offset == 1
