"""The coordinator runtime with another state machine than groups: named counters in an internal topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from millstream_broker.coordinator.effects import Caller
from millstream_broker.coordinator.replay import Skipped, replay
from millstream_broker.coordinator.runtime import CoordinatorRuntime
from millstream_broker.coordinator.state import CoordinatorState
from millstream_harness.group_drivers import SharedTopic, until
from millstream_kafka.batch import Buffer
from millstream_kafka.protocol.errors import ErrorCode


class CountersTopic(SharedTopic):
    name = "__counters"


@dataclass
class LoadedCounters:
    values: dict[str, int] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)

    def __len__(self) -> int:
        return len(self.values)


class Counters:
    """A `coordinator.runtime.Shard`: a counter returns to 0 after a minute without an increment."""

    def __init__(self) -> None:
        self.state: CoordinatorState[str] = CoordinatorState(1)
        self.values: dict[str, int] = {}
        self.idle_ms = 60_000

    def increment(self, caller: Caller, name: str) -> None:
        if error := self.state.unavailable(name):
            self.state.reply(caller, error)
            return
        value = self.values.get(name, 0) + 1

        def stored(error: ErrorCode) -> None:
            if not error:
                self.values[name] = value
                self.state.timers.set(name, self.state.now + self.idle_ms)
            self.state.reply(caller, error or value)

        self.state.store(name, [(name.encode(), b"%d" % value)], stored)

    def advance(self, now: int, wall_clock: int) -> None:
        for name in self.state.advance(now, wall_clock):
            del self.values[name]

    def next_deadline(self) -> int | None:
        return self.state.timers.earliest()

    def reader(self, partition: int) -> Callable[[Iterable[Buffer]], LoadedCounters]:
        def read(batches: Iterable[Buffer]) -> LoadedCounters:
            loaded = LoadedCounters()

            def apply(key: bytes, value: bytes | None) -> None:
                loaded.values[key.decode()] = int(value or b"")

            replay(batches, apply, loaded.skipped)
            return loaded

        return read

    def loaded(self, partition: int, loaded: LoadedCounters) -> None:
        self.values.update(loaded.values)
        self.state.loaded(partition)

    def unload(self, partition: int) -> None:
        self.state.unloading(partition)
        self.values.clear()
        self.state.unloaded(partition)

    def answer_all(self, error: ErrorCode) -> None:
        """No caller waits but for a write."""


@asynccontextmanager
async def running(topic: CountersTopic) -> AsyncIterator[tuple[Counters, CoordinatorRuntime[LoadedCounters]]]:
    counters = Counters()
    runtime = CoordinatorRuntime(counters, topic, "counters")
    await runtime.ensure_topic()
    runtime.on_election(0)
    await until(lambda: not runtime.loading)
    try:
        yield counters, runtime
    finally:
        await runtime.close()


async def increment(
    counters: Counters, runtime: CoordinatorRuntime[LoadedCounters], name: str
) -> int | ErrorCode:
    value: int | ErrorCode = await runtime.call(lambda caller: counters.increment(caller, name))
    return value


async def test_next_coordinator_reads_what_the_previous_one_stored() -> None:
    topic = CountersTopic()
    async with running(topic) as (counters, runtime):
        assert [await increment(counters, runtime, "a") for _ in range(2)] == [1, 2]
    async with running(topic) as (counters, runtime):
        assert await increment(counters, runtime, "a") == 3


async def test_resignation_ends_writes_that_nobody_will_learn_the_fate_of() -> None:
    topic = CountersTopic()
    async with running(topic) as (counters, runtime):
        topic.writable.clear()
        waiting = asyncio.create_task(increment(counters, runtime, "a"))
        await asyncio.sleep(0)
        runtime.on_resignation(0)
        assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await increment(counters, runtime, "a") is ErrorCode.NOT_COORDINATOR
        topic.writable.set()


async def test_unreadable_records_are_named_with_topic_and_kind(caplog: pytest.LogCaptureFixture) -> None:
    topic = CountersTopic()
    async with running(topic) as (counters, runtime):
        await runtime.call(lambda caller: store_damaged(counters, caller))
    async with running(topic) as (counters, runtime):
        assert runtime.unreadable == 1
    assert "__counters-0: skipped 1 records that cannot be read; the first: offset 0: " in caplog.text


def store_damaged(counters: Counters, caller: Caller) -> None:
    counters.state.store("a", [(b"a", b"no number")], lambda error: counters.state.reply(caller, error))


async def test_counters_expire_without_another_event() -> None:
    async with running(CountersTopic()) as (counters, runtime):
        counters.idle_ms = 1
        await increment(counters, runtime, "a")
        await until(lambda: not counters.values)
