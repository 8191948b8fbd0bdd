"""What interrupts `follow`: a log directory that fails, a cancellation, an unexpected error."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.coordination import ClusterState
from millstream_broker.log.manager import LogManager, Released
from millstream_broker.protocol.errors import ErrorCode
from millstream_broker.replication import manager
from millstream_harness.in_process import connected, create, running


async def test_a_directory_that_fails_while_the_broker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its logs were opened, and before they are served."""
    config = {"log.dirs": f"{tmp_path}/one,{tmp_path}/two"}
    async with running(tmp_path, config) as broker, connected(broker) as client:
        await create(client, "t", 4)
        lost = [key for key, home in broker.logs.partitions().items() if home.path.name == "two"]
        assert len(lost) == 2
    watch = Broker._watch_directories

    def failing(broker: Broker) -> None:
        watch(broker)
        broker.logs.dirs[1].fail(OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(Broker, "_watch_directories", failing)
    async with running(tmp_path, config) as broker:
        assert sorted(broker.replicas.unopened) == sorted(lost)
        assert {str(home.path) for home in broker.logs.partitions().values()} == {f"{tmp_path}/one"}
        assert len(broker.logs) == 2
        for key in lost:
            assert broker.replicas.why_not_led(*key).code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_follow_that_is_cancelled_ends_after_the_thread_that_renames_an_older_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one may open the log in the folder before it is renamed."""
    renaming, go_on = threading.Event(), threading.Event()
    put_aside = LogManager.put_aside

    def slow(logs: LogManager, released: list[Released]) -> None:
        renaming.set()
        go_on.wait(60)
        put_aside(logs, released)

    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        topic = broker.metadata.topics["t"]
        broker.replicas._stop(("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
        opened = broker.logs.get("t", 0)
        assert opened is not None
        opened.topic_id = type(topic.topic_id)(int=1)  # as of an older topic
        monkeypatch.setattr(LogManager, "put_aside", slow)
        bringing_up = asyncio.create_task(broker.replicas._bring_up([(topic, 0)]))
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
    """Though nothing changes any more."""
    monkeypatch.setattr(manager, "RETRY_S", 0.01)
    failed = threading.Event()
    async with running(tmp_path) as broker, connected(broker) as client:
        forget = broker.replicas._forget

        def fail_at_first(*states: ClusterState) -> None:
            if not failed.is_set():
                failed.set()
                raise RuntimeError("can't start new thread")
            forget(*states)

        await create(client, "t")
        monkeypatch.setattr(broker.replicas, "_forget", fail_at_first)
        await broker.coordination.set_topic_config("t", {"retention.ms": "5"})
        if (following := broker.replicas._catching_up) is not None:
            await asyncio.wait([following], timeout=60)
        assert failed.is_set()
        assert broker.metadata.topics["t"].config == {"retention.ms": "5"}
