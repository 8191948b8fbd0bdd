"""Replicas whose logs cannot be opened or are lost, errors for handlers, and stored high watermarks."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.coordination import NO_LEADER, PartitionRecord
from millstream_broker.log.inventory import Place
from millstream_broker.log.log import Log
from millstream_broker.log.manager import Found, LogManager
from millstream_broker.replication import manager
from millstream_broker.replication.replicas import Replicas, lag
from millstream_broker.replication.stops import Stop
from millstream_harness.replica import (
    NOW_MS,
    OTHERS,
    THEM,
    US,
    Clock,
    Replicating,
    batch,
    led_by,
    replicating,
    state,
    topic,
)
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

UNKNOWN, NOT_LEADER = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER
OFFLINE = ErrorCode.KAFKA_STORAGE_ERROR


def held(world: Replicating) -> list[tuple[str, int]]:
    return sorted((one.topic, one.index) for one in world.replicas.all())


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Partitions whose logs do not fit on the disk."""
    names: set[str] = set()
    make = Log.open

    def open_log(directory: Path, *more: Any, **options: Any) -> Log:
        if directory.name in names:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(directory, *more, **options)

    monkeypatch.setattr(Log, "open", open_log)
    return names


def two_directories(folder: Path) -> dict[str, str]:
    return {"log.dirs": f"{folder}/one,{folder}/two"}


# Logs that cannot be opened


async def test_a_log_that_cannot_be_opened_is_said_once_and_opened_when_it_can_be(
    tmp_path: Path, full: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with replicating(tmp_path) as world:
        full.add("t-1")
        await world.told(state(topic("t", led_by(US), led_by(US), led_by(THEM))))
        reason = f"{tmp_path}/t-1 cannot be made: No space left on device"
        for _ in range(2):
            assert held(world) == [("t", 0), ("t", 2)]
            assert world.replicas.unopened == {("t", 1): reason}
            assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [
                f"t-1 is offline: {reason}"
            ]
            await world.manager.open_missing()
        full.clear()
        await world.manager.open_missing()
        assert (held(world), world.replicas.unopened) == ([("t", 0), ("t", 1), ("t", 2)], {})


async def test_a_partition_that_cannot_be_opened_is_offline_as_long_as_its_topic_is_there(
    tmp_path: Path, full: set[str]
) -> None:
    record = topic("t")
    async with replicating(tmp_path) as world:
        full.add("t-0")
        await world.told(state(record))
        await world.told(state(record, topic("other")))
        assert list(world.replicas.unopened) == [("t", 0)]
        await world.told(state(topic("other")))
        assert world.replicas.unopened == {}


@pytest.mark.parametrize("anew", [(led_by(US),), (led_by(US), led_by(THEM, THEM, OTHERS))])
async def test_a_partition_that_cannot_be_opened_is_not_that_of_a_topic_made_anew_without_it(
    tmp_path: Path, full: set[str], anew: tuple[PartitionRecord, ...]
) -> None:
    async with replicating(tmp_path) as world:
        full.add("t-1")
        await world.told(state(topic("t", led_by(US), led_by(US))))
        await world.told(state(topic("t", *anew)))
        assert world.replicas.unopened == {}


async def test_a_replica_that_moved_away_before_it_could_be_opened_is_not_opened(
    tmp_path: Path, full: set[str]
) -> None:
    record = topic("t")
    async with replicating(tmp_path) as world:
        full.add("t-0")
        await world.told(state(record))
        await world.told(state(replace(record, partitions=(led_by(THEM, THEM, OTHERS, epoch=1),))))
        full.clear()
        await world.manager.open_missing()
        assert (held(world), world.replicas.unopened) == ([], {})
        assert not (tmp_path / "t-0").exists()
        stop = Stop("t", 0, -1, True, record.topic_id)
        assert await world.manager.stop_replicas([stop]) == {("t", 0): ErrorCode.NONE}


# Directories that fail


async def test_a_lost_log_is_made_anew_in_no_other_directory(tmp_path: Path) -> None:
    """The lost log may have records that no other log has."""
    record = topic("t", led_by(US), led_by(US), led_by(THEM), led_by(THEM))
    async with replicating(tmp_path, two_directories(tmp_path)) as world:
        await world.told(state(record))
        home = world.logs.dirs[0]
        lost = sorted(home.logs)
        assert len(lost) == 2
        home.fail(OSError(errno.EIO, "Input/output error"))
        await turns()
        kept = [("t", index) for index in range(4) if ("t", index) not in lost]
        for _ in range(2):
            assert held(world) == kept
            assert world.replicas.unopened == dict.fromkeys(
                lost, f"its log directory is offline: {home.path}"
            )
            await world.manager.open_missing()
        newer = tuple(replace(one, version=1) for one in record.partitions)
        await world.told(state(replace(record, partitions=newer)))
        assert held(world) == kept
        assert sorted(world.replicas.unopened) == lost
        (other,) = world.logs.dirs
        assert sorted(other.logs) == kept


async def test_a_lost_replica_that_moved_away_is_not_deleted(tmp_path: Path) -> None:
    """The directory may return, and the replica with it."""
    record = topic("t", led_by(US), led_by(US))
    async with replicating(tmp_path, two_directories(tmp_path)) as world:
        await world.told(state(record))
        home = world.logs.partitions()["t", 0]
        home.fail(OSError(errno.EIO, "Input/output error"))
        await turns()
        moved = tuple(led_by(THEM, THEM, OTHERS, epoch=1) for _ in record.partitions)
        await world.told(state(replace(record, partitions=moved)))
        stops = [Stop("t", index, -1, True, record.topic_id) for index in (0, 1)]
        assert await world.manager.stop_replicas(stops) == {("t", 0): OFFLINE, ("t", 1): ErrorCode.NONE}


async def test_a_log_that_is_lost_before_it_is_served_belongs_to_the_topic_that_it_names(
    tmp_path: Path,
) -> None:
    record = topic("t", *[led_by(US)] * 3)
    async with replicating(tmp_path) as world:
        world.replicas.latest_image = state(record)
        older = topic("t").topic_id
        world.manager.lose(
            [Found("t", 0, record.topic_id), Found("t", 1, None), Found("t", 2, older)], "gone"
        )
        await world.told(state(record))
        assert held(world) == [("t", 2)]
        assert sorted(world.replicas.unopened) == [("t", 0), ("t", 1)]


async def test_why_a_log_is_lost(tmp_path: Path) -> None:
    """Its directory is offline, or it has gone from a directory that works."""
    record = topic("t", *[led_by(US)] * 3)
    async with replicating(tmp_path, two_directories(tmp_path)) as world:
        logs, (one, two) = world.logs, world.logs.dirs
        places = (one.path, two.path)
        logs.inventory.missing = {
            (record.topic_id, index): Place("t", str(path)) for index, path in enumerate(places)
        }
        one.fail(OSError(errno.EIO, "Input/output error"))
        await turns()
        offline = f"its log directory is offline: {one.path}"
        reasons = [world.manager.lost.reason(record, index) for index in range(3)]
        assert (reasons[0], reasons[2]) == (offline, offline)
        assert reasons[1].startswith(f"its log is missing: it was in {two.path}. ")


async def test_replicas_that_no_directory_has_are_in_those_that_are_offline(tmp_path: Path) -> None:
    not_told_whose = PartitionRecord((), NO_LEADER, 0, ())
    record = topic("t", *[led_by(US)] * 4, led_by(THEM, THEM, OTHERS), not_told_whose)
    async with replicating(tmp_path) as world:
        logs = world.logs
        logs.get_or_create("t", 0, record.topic_id)
        logs.get_or_create("t", 1, None)
        logs.get_or_create("t", 2, topic("t").topic_id)
        world.replicas.latest_image = state(record)
        world.manager.lost.find()
        await world.told(state(record))
        assert held(world) == [("t", 0), ("t", 1)]
        assert sorted(world.replicas.unopened) == [("t", 2), ("t", 3)]
        told = (*record.partitions[:4], led_by(US), led_by(US))
        await world.told(state(replace(record, partitions=told)))
        assert held(world) == [("t", 0), ("t", 1), ("t", 4)], "what was elsewhere is made here"
        assert sorted(world.replicas.unopened) == [("t", 2), ("t", 3), ("t", 5)]


async def test_a_directory_that_fails_while_logs_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = LogManager.get_or_create

    def failing(logs: LogManager, name: str, index: int, *more: Any) -> Log:
        log = make(logs, name, index, *more)
        if index == 0:
            logs.partitions()[name, index].fail(OSError(errno.EIO, "Input/output error"))
        return log

    monkeypatch.setattr(LogManager, "get_or_create", failing)
    async with replicating(tmp_path, two_directories(tmp_path)) as world:
        await world.told(state(topic("t", led_by(US), led_by(US))))
        assert held(world) == [("t", 1)]
        assert world.replicas.unopened == {("t", 0): "its log directory is offline"}


async def test_an_empty_log_that_takes_the_place_of_a_lost_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, make = asyncio.get_running_loop(), LogManager.get_or_create

    def too_late(logs: LogManager, name: str, index: int, *more: Any) -> Log:
        loop.call_soon_threadsafe(world.manager.lose, [Found(name, index, None)], "gone")
        return make(logs, name, index, *more)

    monkeypatch.setattr(LogManager, "get_or_create", too_late)
    async with replicating(tmp_path) as world:
        await world.told(state(topic("t")))
        assert held(world) == []
        assert list(world.replicas.unopened) == [("t", 0)]
        assert not (tmp_path / "t-0").exists()


# Questions of handlers


async def test_why_a_partition_is_not_led(tmp_path: Path, full: set[str]) -> None:
    record = topic("t", led_by(THEM), led_by(THEM), led_by(US))
    anew = topic("anew")
    async with replicating(tmp_path) as world:
        full.add("t-2")
        await world.told(state(record, topic("deleted"), anew))
        now = world.replicas.latest_image
        world.replicas.latest_image = replace(
            now, topics={"t": record, "anew": topic("anew"), "made": topic("made")}
        )

        def why(name: str, index: int) -> ErrorCode:
            return world.replicas.why_not_led(name, index).code

        assert [why("t", index) for index in (-1, 0, 1, 2, 3)] == [
            UNKNOWN,
            NOT_LEADER,
            NOT_LEADER,
            OFFLINE,
            UNKNOWN,
        ]
        for name in ("unknown", "deleted", "anew", "made"):
            assert why(name, 0) is UNKNOWN
        assert world.replicas.why_not_led("t", 2).message == world.replicas.unopened["t", 2]
        with pytest.raises(ApiError) as error:
            world.replicas.get(("t", 2))
        assert error.value.code is OFFLINE


async def test_the_id_of_a_topic_is_that_of_the_newest_state(tmp_path: Path) -> None:
    record = topic("t")
    async with replicating(tmp_path) as world:
        world.replicas.latest_image = state(record)
        assert world.replicas.topic_id("t") == record.topic_id
        assert world.replicas.topic_id("unknown") == ZERO_UUID


async def test_the_record_of_a_partition_is_that_of_the_newest_state(tmp_path: Path) -> None:
    record = topic("t")
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        partition = world.replicas.partitions["t", 0]
        newer = replace(record, partitions=(replace(record.partitions[0], version=1), led_by(US)))
        world.replicas.latest_image = state(newer)
        assert world.replicas.known_record(partition) is newer.partitions[0]
        for gone in (state(), state(topic("t")), state(replace(record, partitions=()))):
            world.replicas.latest_image = gone
            assert world.replicas.known_record(partition) is None


async def test_replicas_led_and_followed_are_found_alike(tmp_path: Path, full: set[str]) -> None:
    async with replicating(tmp_path) as world:
        full.add("t-2")
        await world.told(state(topic("t", led_by(US, US), led_by(THEM), led_by(US))))
        replicas = world.replicas
        led, followed, missing, unknown = (("t", index) for index in range(4))
        assert replicas.get(led) is replicas.partitions[led]
        assert replicas.get(followed) is replicas.followers[followed]
        replicas.partitions[led].append(batch("a"), NOW_MS)
        replicas.followers[followed].high_watermark = 7
        assert [replicas.high_watermark(one) for one in (led, followed, missing)] == [1, 7, 0]
        assert [lag(replicas.get(one)) for one in (led, followed)] == [0, 7]
        offline = [replicas.is_offline(*one) for one in (led, followed, missing, unknown)]
        assert offline == [False, False, True, False]
        replicas.get(led).log.offline = replicas.get(followed).log.offline = OSError(errno.EIO, "broken")
        assert [replicas.is_offline(*one) for one in (led, followed)] == [True, True]


# High watermarks


class Written:
    """Each set of written high watermarks; other brokers of this process write theirs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, logs: LogManager) -> None:
        self.entries: list[dict[tuple[str, int], int]] = []
        monkeypatch.setattr(logs, "write_high_watermarks", self._write)

    def _write(self, entries: Mapping[tuple[str, int], tuple[Any, int]]) -> None:
        self.entries.append({key: high_watermark for key, (_, high_watermark) in entries.items()})

    async def reach(self, count: int) -> None:
        """Wait until a thread has written ``count`` times."""
        while len(self.entries) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_high_watermarks_of_replicated_partitions_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicating(tmp_path) as world:
        written = Written(monkeypatch, world.logs)
        await world.told(state(topic("t", led_by(US), led_by(THEM), led_by(US, US))))
        world.replicas.partitions["t", 0].high_watermark = 5
        world.replicas.followers["t", 1].high_watermark = 7
        await world.manager.watermarks.write()
        assert written.entries == [{("t", 0): 5, ("t", 1): 7}], "a sole replica's goes with its log"


@pytest.mark.parametrize("interval_ms", [5000, 100])
async def test_high_watermarks_are_written_at_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int
) -> None:
    clock = Clock(monkeypatch)
    config = {"replica.high.watermark.checkpoint.interval.ms": str(interval_ms)}
    async with replicating(tmp_path, config) as world:
        written = Written(monkeypatch, world.logs)
        keeping = asyncio.create_task(world.manager.watermarks.keep())
        for times in (1, 2):
            due = clock.now + interval_ms / 1000
            await clock.is_awaited(due)
            await clock.reach(due - interval_ms / 10_000_000 * 5)
            await asyncio.to_thread(lambda: None)
            assert len(written.entries) == times - 1
            await clock.reach(due)
            await written.reach(times)
        keeping.cancel()


# The end


async def test_a_broker_that_stops_follows_no_more(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        await world.told(state(topic("followed", led_by(THEM))))
        await turns()
        call = world.peers.calls.pop()
        world.manager.changed(state(topic("t")))
        await world.manager.close()
        await turns()
        assert world.replicas.partitions == {}
        assert call.connection.is_closed


async def test_the_collector_of_garbage_is_spared_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per so many opened partitions, without a full collection."""
    done: list[str] = []
    monkeypatch.setattr(manager, "MANY", 3)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "collect", lambda generation: done.append(f"collect {generation}"))
    topics = [topic(f"t{number}", led_by(US)) for number in range(6)]
    async with replicating(tmp_path) as world:
        for count, passes in ((2, 0), (3, 1), (5, 1), (6, 2)):
            await world.told(state(*topics[:count]))
            assert done == ["collect 1", "freeze"] * passes, count


def test_what_is_said_first_is_not_done_yet() -> None:
    replicas = Replicas(US, state())
    assert replicas.is_behind
    replicas.applied(replicas.latest[1])
    assert not replicas.is_behind
    replicas.receive_image(state())
    assert replicas.is_behind
