"""Notes of changed configuration: none is missed, whatever the brokers' clocks say and whoever removes notes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from millstream_broker.coordination import tree
from millstream_broker.coordination.change_notes import NOTES_EXPIRE_MS
from millstream_broker.coordination.configs import Configs
from millstream_broker.coordination.stores import Delete
from millstream_harness.shared_tree import SharedTree

HOUR_S = 3600.0


class Clocks:
    """The clock of the store, and that of the brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        self.ahead = 0.0
        monkeypatch.setattr(time, "time", lambda: self.now + self.ahead)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@contextlib.asynccontextmanager
async def reading(shared: SharedTree, count: int = 2) -> AsyncIterator[Sequence[Configs]]:
    found = []
    for _ in range(count):
        store = shared.store()
        store.start()
        await store.connected()
        await store.ensure(*tree.ALWAYS)
        configs = Configs(store, lambda changed: None)
        await configs.load(lambda path: None)
        found.append(configs)
    yield found


async def write(configs: Configs, entity: str, config: dict[str, str]) -> None:
    async def replaced(stored: Mapping[str, str]) -> Mapping[str, str]:
        return config

    await configs.change(entity, replaced)


def notes(shared: SharedTree) -> list[str]:
    return sorted(shared.nodes.names(tree.CONFIG_CHANGES))


async def test_a_broker_whose_clock_is_ahead_removes_no_note_that_others_need(clocks: Clocks) -> None:
    shared = SharedTree()
    async with reading(shared) as (one, other):
        for number in range(3):
            await write(one, "topics/t", {"retention.ms": str(number)})
        clocks.ahead = HOUR_S
        await one.read_notes()
        clocks.ahead = 0.0
        assert len(notes(shared)) == 3
        await other.read_notes()
        assert other.topics["t"] == {"retention.ms": "2"}


async def test_old_notes_are_removed_by_the_clock_of_the_store(clocks: Clocks) -> None:
    shared = SharedTree()
    async with reading(shared) as (one, other):
        await write(one, "topics/t", {"retention.ms": "1"})
        clocks.now += NOTES_EXPIRE_MS / 1000 + 1
        await one.read_notes()
        assert len(notes(shared)) == 1, "the newest one shows what there has been"
        await write(one, "topics/u", {"retention.ms": "2"})
        await one.read_notes()
        assert [name[-1] for name in notes(shared)] == ["1"]
        await other.read_notes()
        assert (other.topics["t"], other.topics["u"]) == ({"retention.ms": "1"}, {"retention.ms": "2"})
        clocks.now += NOTES_EXPIRE_MS / 1000
        await other.read_notes()
        assert len(notes(shared)) == 1


@pytest.mark.parametrize("gone", [[0], [1], [0, 1], [2], [0, 1, 2]])
@pytest.mark.parametrize("seen", [0, 1])
async def test_whatever_notes_are_gone_nothing_is_missed(clocks: Clocks, gone: list[int], seen: int) -> None:
    """As after a removal by a broker of an earlier version, whose clock was ahead."""
    shared = SharedTree()
    async with reading(shared) as (one, other):
        for number in range(seen):
            await write(one, f"topics/seen-{number}", {"retention.ms": "7"})
        await other.read_notes()
        for name in "abc":
            await write(one, f"topics/{name}", {"retention.ms": "-1"})
        for number in gone:
            shared.commit([Delete(f"{tree.CONFIG_CHANGES}/{notes(shared)[0][:-1]}{seen + number}")], 0)
        await other.read_notes()
        known = {name for name in "abc" if name in other.topics}
        if 2 in gone:  # then the next note shows it
            await write(one, "topics/last", {"retention.ms": "1"})
            await other.read_notes()
            known = {name for name in "abc" if name in other.topics}
        assert known == set("abc")


async def test_numbers_that_begin_again_are_noticed(clocks: Clocks) -> None:
    """An administrator has removed /config/changes, and it was created again."""
    shared = SharedTree()
    async with reading(shared) as (one, other):
        for number in range(3):
            await write(one, "topics/t", {"retention.ms": str(number)})
        await other.read_notes()
        for name in notes(shared):
            shared.commit([Delete(f"{tree.CONFIG_CHANGES}/{name}")], 0)
        shared.commit([Delete(tree.CONFIG_CHANGES)], 0)
        store = shared.store()
        store.start()
        await store.connected()
        await store.ensure(tree.CONFIG_CHANGES)
        await write(one, "topics/t", {"retention.ms": "9"})
        await other.read_notes()
        assert other.topics["t"] == {"retention.ms": "9"}
