"""Log starts that DeleteRecords moves: acknowledged, by leaders and followers, when a crash cannot undo them."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.replication.append_queue import AppendQueue
from millstream_broker.replication.isr import Isr
from millstream_broker.replication.partition import Partition, now_ms
from millstream_broker.replication.purgatory import Delayed
from millstream_broker.runtime.request_memory import RequestMemory
from millstream_harness.fetching import fetching, partitions_of
from millstream_harness.held_thread import HeldThread
from millstream_harness.replica import (
    NOW_MS,
    THEM,
    US,
    Clock,
    PlayedHome,
    asked,
    batch,
    fetched,
    led_by,
    open_log,
    response,
    topic,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode


def led(folder: Path, home: PlayedHome, *followers: int) -> Partition:
    """Partition t-0 with ten records, all replicated."""
    record = led_by(US, US, *followers)
    log = open_log(folder / "t-0", home=home)
    isr = Isr(
        US,
        record,
        log_end=0,
        high_watermark=0,
        min_isr=1,
        max_lag_ms=600_000,
        alive=(US, THEM),
        now_ms=now_ms(),
    )
    partition = Partition(
        topic("t", record),
        0,
        log,
        TopicConfig(BrokerConfig(), {}),
        AppendQueue(RequestMemory(1 << 20)),
        isr if followers else None,
    )
    partition.append(batch(*"0123456789"), NOW_MS, acks=1)
    for follower in followers:
        partition.fetched(follower, 10, 0)
    assert partition.high_watermark == 10
    return partition


def delete(partition: Partition, offset: int) -> Delayed:
    waiting = partition.delete_records_before(offset, 60_000)
    assert waiting is not None
    return waiting


async def ended(waiting: Delayed) -> ErrorCode:
    try:
        await waiting
    except ApiError as error:
        return ErrorCode.of(error.code)
    return ErrorCode.NONE


async def test_a_sole_replica_waits_for_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    partition = led(tmp_path, PlayedHome())
    waiting = delete(partition, 5)
    await held.reached()
    assert (waiting.is_done, partition.low_watermark) == (False, 0)
    held.open()
    assert await ended(waiting) is ErrorCode.NONE
    assert partition.low_watermark == 5
    assert partition.delete_records_before(5, 60_000) is None, "it is durable"


async def test_a_leader_waits_for_its_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    partition = led(tmp_path, PlayedHome(), THEM)
    waiting = delete(partition, 5)
    await held.reached()
    partition.fetched(THEM, 10, 5)
    assert not waiting.is_done
    held.open()
    assert await ended(waiting) is ErrorCode.NONE


async def test_a_leader_whose_disk_has_it_waits_for_its_followers(tmp_path: Path) -> None:
    home = PlayedHome()
    partition = led(tmp_path, home, THEM)
    waiting = delete(partition, 5)
    await partition._starts.close()
    assert (partition.log.durable_start, waiting.is_done) == (5, False)
    assert delete(partition, 5) is not waiting
    await partition._starts.close()
    assert home.commits == 1, "it is durable"
    partition.fetched(THEM, 10, 5)
    assert await ended(waiting) is ErrorCode.NONE


async def test_requests_during_a_write_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    home = PlayedHome()
    partition = led(tmp_path, home)
    waiting = [delete(partition, 1)]
    await held.reached()
    waiting += [delete(partition, offset) for offset in range(2, 8)]
    held.open()
    assert [await ended(one) for one in waiting] == [ErrorCode.NONE] * 7
    assert home.commits <= 2


async def test_a_start_that_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    home = PlayedHome()
    partition = led(tmp_path, home)
    home.refusals = [OSError(errno.ENOSPC, "No space left on device")]
    assert await ended(delete(partition, 5)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [error.errno for error in home.errors] == [errno.ENOSPC], "the directory may be at fault"
    assert await ended(delete(partition, 5)) is ErrorCode.NONE, "a retry writes it"


async def test_a_leader_that_steps_down_meanwhile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    partition = led(tmp_path, PlayedHome(), THEM)
    waiting = delete(partition, 5)
    await held.reached()
    partition.step_down()
    held.open()
    assert await ended(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_reports_its_start_when_it_is_durable(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    async with fetching(tmp_path, clock) as world:
        (follower,) = world.follow(0, home=PlayedHome())
        call = await world.answered(response(fetched(0, batch(*"01234", epoch=3))))
        assert partitions_of(call) == [0]
        call.answer(response(fetched(0, log_start_offset=3)))
        await held.reached()
        assert (follower.log.log_start_offset, follower.log.durable_start) == (3, 0)
        await clock.advance(1)
        call = await world.asked()
        assert asked(call.request)["t", 0].log_start_offset == 0
        call.answer(response())
        call = await world.asked()
        assert partitions_of(call) == [], "it has no news"
        held.open()
        assert follower.committing is not None
        await asyncio.wait([follower.committing])
        call.answer(response())
        call = await world.asked()
        assert asked(call.request)["t", 0].log_start_offset == 3
        call.answer(response())
        assert partitions_of(await world.asked()) == [], "the leader knows it"


async def test_a_follower_with_records_does_not_wait_for_its_disk_to_fetch_more(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    async with fetching(tmp_path, clock) as world:
        world.follow(0, home=PlayedHome())
        call = await world.asked()
        call.answer(response(fetched(0, batch(*"01234", epoch=3), log_start_offset=3)))
        await held.reached()
        assert partitions_of(await world.asked()) == [0]
        held.open()


async def test_a_start_of_a_partition_that_is_no_longer_followed_is_not_reported(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fetching(tmp_path, clock, 1) as world:
        world.follow(0, home=PlayedHome())
        call = await world.answered(response(fetched(0, batch(*"01234", epoch=3))))
        call.answer(response(fetched(0, log_start_offset=3)))
        call = await world.asked()
        world.fetcher.remove(("t", 0))
        call.answer(response())
        assert partitions_of(await world.asked()) == []
    assert caplog.records == []


async def test_an_idle_follower_waits_for_its_disk_briefly_to_report_at_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    async with fetching(tmp_path, clock) as world:
        (follower,) = world.follow(0, home=PlayedHome())
        call = await world.answered(response(fetched(0, batch(*"01234", epoch=3))))
        call.answer(response(fetched(0, log_start_offset=3)))
        await held.reached()
        held.open()
        assert follower.committing is not None
        await asyncio.wait([follower.committing])
        call = await world.asked()
        assert asked(call.request)["t", 0].log_start_offset == 3


async def test_a_follower_whose_disk_is_full_reports_its_start_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldThread(monkeypatch, PlayedHome, "commit_starts")
    home = PlayedHome()
    home.refusals = [OSError(errno.ENOSPC, "No space left on device")]
    async with fetching(tmp_path, clock) as world:
        (follower,) = world.follow(0, home=home)
        call = await world.answered(response(fetched(0, batch(*"01234", epoch=3))))
        call.answer(response(fetched(0, log_start_offset=3)))
        await held.reached()
        held.open()
        assert follower.committing is not None
        await asyncio.wait([follower.committing])
        call = await world.asked()
        assert asked(call.request)["t", 0].log_start_offset == 0
        home.commit_starts()  # the periodic checkpoint
        call.answer(response())
        call = await world.asked()
        assert asked(call.request)["t", 0].log_start_offset == 3
        assert follower.log.durable_start == 3
