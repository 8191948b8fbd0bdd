"""How soon a mirror picks up new topics and partitions, counted in its own checks of the source."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewPartitions

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.java import ROOT
from millstream_harness.mirror import admin, arrived, create, produce
from millstream_harness.scenario import eventually, unique
from millstream_mirror import source
from millstream_mirror.config.config import parse
from millstream_mirror.worker import MirrorWorker

pytestmark = pytest.mark.process

LOOKS = 2
"""The check that may be running when a topic is created, and the next one."""


class CountedWorker:
    """A worker in this process that remembers the partitions ready to mirror after each check, and its waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, west: str, east: str, prefix: str, mode: str) -> None:
        config = {
            "name": prefix,
            "sources": [{"name": "west", "bootstrap": west}],
            "target": {"bootstrap": east},
            "topics": {"include": [f"{prefix}.*"]},
            "mode": mode,
            "http": "127.0.0.1:0",
        }
        self.worker = MirrorWorker(parse(json.dumps(config)))
        self.ready: list[dict[str, int]] = []
        """Partitions by topic, after each check."""
        self.waits: set[float] = set()
        (mirror,) = self.worker.sources
        look, sleep = mirror._refresh, asyncio.sleep

        async def counted() -> None:
            await look()
            self.ready.append({topic.topic: topic.partitions for topic in mirror._ready})

        async def noted(delay: float, result: None = None) -> None:
            task = asyncio.current_task()
            if task is not None and getattr(task.get_coro(), "__name__", "") == "_refresh_on":
                self.waits.add(delay)
            await sleep(delay, result)

        monkeypatch.setattr(mirror, "_refresh", counted)
        monkeypatch.setattr(asyncio, "sleep", noted)

    async def sees(self, topic: str, partitions: int, change: Callable[[], None]) -> None:
        """Make this change in the source; the worker must have the topic ready after ``LOOKS`` checks."""
        await asyncio.to_thread(change)
        before = len(self.ready)

        def at() -> int | None:
            found = (number for number, one in enumerate(self.ready) if one.get(topic) == partitions)
            return next(found, None)

        seen = await asyncio.to_thread(
            eventually, at, lambda found: found is not None, f"{topic} is ready", 60
        )
        assert seen is not None
        assert seen - before < LOOKS


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
async def test_new_topics_are_ready_after_next_refresh(
    west: InProcessBroker, east: InProcessBroker, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    prefix = unique("looks")
    first, second = f"{prefix}-1", f"{prefix}-2"

    def grow() -> None:
        admin(west).create_partitions([NewPartitions(first, 3)])[first].result(20)
        eventually(
            lambda: len(admin(west).list_topics(first).topics[first].partitions), lambda n: n == 3, "growth"
        )

    counted = CountedWorker(monkeypatch, west.bootstrap, east.bootstrap, prefix, mode)
    await counted.worker.start()
    running = asyncio.create_task(counted.worker.run())
    try:
        await counted.sees(first, 1, lambda: create(west, first))
        await counted.sees(second, 1, lambda: create(west, second))
        await counted.sees(first, 3, grow)
        await asyncio.to_thread(produce, west, first, range(30), 3)
        await asyncio.to_thread(arrived, east, first, [10, 10, 10])
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert counted.waits
    assert counted.waits <= {source.REFRESH_S, source.NEW_REFRESH_S}


def test_pages_name_refresh_interval() -> None:
    page = (ROOT / "docs/mirroring.md").read_text()
    assert "a worker looks for them every two seconds" in page
    assert max(source.REFRESH_S, source.NEW_REFRESH_S) == 2
