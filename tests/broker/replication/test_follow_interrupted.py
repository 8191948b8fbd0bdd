"""What interrupts `follow`: a log directory that fails, a cancellation, an unexpected error."""

from __future__ import annotations

import asyncio
import errno
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.broker import Broker, Failure
from millstream_broker.coordination import ClusterState, PartitionRecord, TopicRecord
from millstream_broker.log.manager import LogManager, Released
from millstream_broker.log.segment import Segment
from millstream_broker.replication import manager
from millstream_broker.replication.stops import Stop
from millstream_harness.held_thread import HeldThread
from millstream_harness.in_process import connected, create, running
from millstream_harness.replica import (
    NOW_MS,
    OTHERS,
    THEM,
    US,
    Replicating,
    batch,
    fetched,
    led_by,
    replicating,
    response,
    state,
    topic,
)
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import EpochEndOffset


async def test_a_directory_that_fails_while_the_broker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails after its logs were opened, before they are served."""
    config = {"log.dirs": f"{tmp_path}/one,{tmp_path}/two"}
    async with running(tmp_path, config) as broker, connected(broker) as client:
        await create(client, "t", 4)
        lost = [key for key, home in broker.logs.partitions().items() if home.path.name == "two"]
        assert len(lost) == 2
    watch = Broker.watch_directories

    def failing(broker: Broker, failure: Failure, needed: Path | None) -> None:
        watch(broker, failure, needed)
        broker.logs.dirs[1].fail(OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(Broker, "watch_directories", failing)
    async with running(tmp_path, config) as broker:
        assert sorted(broker.replicas.unopened) == sorted(lost)
        assert {str(home.path) for home in broker.logs.partitions().values()} == {f"{tmp_path}/one"}
        assert len(broker.logs) == 2
        for key in lost:
            assert broker.replicas.why_not_led(*key).code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_follow_that_is_cancelled_ends_after_the_thread_that_renames_an_older_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next `follow` may open the log before its folder is renamed."""
    renaming, go_on = threading.Event(), threading.Event()
    put_aside = LogManager.put_aside

    def slow(logs: LogManager, released: list[Released]) -> None:
        renaming.set()
        go_on.wait(60)
        put_aside(logs, released)

    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        topic = broker.replicas.metadata.topics["t"]
        broker.replica_manager._roles.stop(("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
        opened = broker.logs.get("t", 0)
        assert opened is not None
        opened.topic_id = type(topic.topic_id)(int=1)  # as of an older topic
        monkeypatch.setattr(LogManager, "put_aside", slow)
        bringing_up = asyncio.create_task(broker.replica_manager._bring_up([(topic, 0)]))
        assert await asyncio.to_thread(renaming.wait, 60)
        bringing_up.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended_before = bringing_up.done()
        go_on.set()
        await asyncio.wait([bringing_up])
        assert not ended_before
        assert not (tmp_path / "t-0").exists()


async def test_a_state_that_cannot_be_followed_at_first_is_followed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if nothing else changes."""
    monkeypatch.setattr(manager, "RETRY_S", 0.01)
    failed = threading.Event()
    async with running(tmp_path) as broker, connected(broker) as client:
        forget = broker.replica_manager._forget

        def fail_at_first(*states: ClusterState) -> None:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("can't start new thread")
            forget(*states)

        await create(client, "t")
        monkeypatch.setattr(broker.replica_manager, "_forget", fail_at_first)
        topic_id = broker.replicas.metadata.topics["t"].topic_id
        await broker.coordination.set_topic_config("t", topic_id, {"retention.ms": "5"}, [])
        if (following := broker.replica_manager._catching_up) is not None:
            await asyncio.wait([following], timeout=60)
        assert failed.is_set()
        assert broker.replicas.metadata.topics["t"].config == {"retention.ms": "5"}


# A log that is being cut


async def begun_to_cut(world: Replicating, monkeypatch: pytest.MonkeyPatch) -> tuple[HeldThread, TopicRecord]:
    """Partition t-0: broker 2 leads it, and has said that the second of two records is not its own."""
    gate = HeldThread(monkeypatch, Segment, "truncate")
    record = topic("t", led_by(THEM, epoch=3))
    await world.told(state(record))
    follower = world.replicas.followers["t", 0]
    follower.log.append_as_follower(batch("a", epoch=1), now_ms=NOW_MS)
    follower.log.append_as_follower(batch("b", offset=1, epoch=2), now_ms=NOW_MS)
    (await world.peers.asked()).answer(response(fetched(diverging_epoch=EpochEndOffset(1, 1))))
    await gate.reached()
    return gate, record


NEXT_ROLES = {
    "it leads": lambda record: state(topic_of(record, led_by(US, epoch=4))),
    "another leads": lambda record: state(topic_of(record, led_by(OTHERS, US, OTHERS, epoch=4))),
    "it has no replica any more": lambda record: state(topic_of(record, led_by(THEM, THEM, OTHERS))),
    "the topic is deleted": lambda record: state(),
    "the topic is made anew": lambda record: state(topic("t")),
}


def topic_of(record: TopicRecord, partition: PartitionRecord) -> TopicRecord:
    return replace(record, partitions=(partition,))


@pytest.mark.parametrize("next_role", NEXT_ROLES.values(), ids=NEXT_ROLES)
async def test_a_replica_takes_no_other_role_before_its_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_role: Callable[[TopicRecord], ClusterState]
) -> None:
    async with replicating(tmp_path) as world:
        gate, record = await begun_to_cut(world, monkeypatch)
        follower = world.replicas.followers["t", 0]
        changing = asyncio.create_task(world.told(next_role(record)))
        await turns()
        assert not changing.done()
        assert world.replicas.followers == {("t", 0): follower}
        assert not world.replicas.partitions
        gate.open()
        await changing
        assert follower.log.log_end_offset == 1
        if (led := world.replicas.partitions.get(("t", 0))) is not None and led.log is follower.log:
            assert led.log.epochs.entries == [(1, 0), (4, 1)]


def of_t(world: Replicating) -> uuid.UUID:
    return world.replicas.topic_id("t")


async def test_a_stop_by_a_controller_waits_until_the_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicating(tmp_path) as world:
        gate, _ = await begun_to_cut(world, monkeypatch)
        stopping = asyncio.create_task(world.manager.stop_replicas([Stop("t", 0, -1, True, of_t(world))]))
        await turns()
        assert not stopping.done()
        gate.open()
        assert await stopping == {("t", 0): ErrorCode.NONE}
        assert world.logs.get("t", 0) is None


async def test_a_broker_that_stops_waits_until_its_logs_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicating(tmp_path) as world:
        gate, _ = await begun_to_cut(world, monkeypatch)
        follower = world.replicas.followers["t", 0]
        closing = asyncio.create_task(world.manager.close())
        await turns()
        assert not closing.done()
        gate.open()
        await closing
        assert (follower.log.log_end_offset, follower.log.truncating) == (1, False)


async def test_a_thread_is_waited_for_however_often_it_is_cancelled() -> None:
    """Otherwise a stop could remove a folder that the thread is making, and take that for a failed disk."""
    begun, goes_on = threading.Event(), threading.Event()
    ended = []

    def work() -> None:
        begun.set()
        goes_on.wait(30)
        ended.append(True)

    waiting = asyncio.create_task(manager._to_its_end(asyncio.to_thread(work)))
    await asyncio.to_thread(begun.wait, 30)
    for _ in range(3):
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not waiting.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended
