"""The rebalance machine with any number of consumers that join, leave and see the registry late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.consuming.lease import Lease
from millstream.consuming.zookeeper.assignment import ranges, target_of, thread_name
from millstream.consuming.zookeeper.rebalance import (
    AT_ONCE,
    Action,
    Claim,
    Read,
    Rebalance,
    Register,
    Release,
    Start,
    Stop,
    Wait,
)

pytestmark = pytest.mark.once

names = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=7)


@given(st.integers(0, 40), names)
def test_ranges_are_contiguous_even_and_complete(count: int, threads: list[str]) -> None:
    found = ranges(reversed(range(count)), threads)
    assert set(found) == set(threads)
    if threads:
        assert [number for name in sorted(threads) for number in found[name]] == list(range(count))
        sizes = Counter(map(len, found.values()))
        assert max(sizes) - min(sizes) <= 1


@given(names, st.integers(1, 3), st.integers(0, 20))
def test_all_consumers_together_own_each_partition_once(
    consumers: list[str], streams: int, count: int
) -> None:
    registry = {name: {"t": streams} for name in consumers}
    owned = [at for name in consumers for at in target_of(name, registry, {"t": range(count)})]
    assert sorted(owned) == ([("t", number) for number in range(count)] if consumers else [])


@dataclass
class World:
    """ZooKeeper: consumers and owners by session, with watches that fire at random times."""

    partitions: int
    sessions: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)
    owners: dict[tuple[str, int], tuple[str, int, str]] = field(
        default_factory=dict
    )  # consumer, session, thread
    machines: dict[str, Rebalance] = field(default_factory=dict)
    handing_out: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    watching: set[str] = field(default_factory=set)
    losing: set[str] = field(default_factory=set)  # those that do not know yet that their session is over

    def notify(self) -> None:
        for name in self.watching & self.machines.keys():
            self.machines[name].changed()
        self.watching.clear()

    def join(self, name: str) -> None:
        self.sessions[name] = self.sessions.get(name, 0) + 1
        self.machines[name] = Rebalance(name)
        self.handing_out[name] = set()

    def expire(self, name: str, *, died: bool = False) -> None:
        """The session ends; its client has stopped before, because of its lease, and has a new session at once."""
        self.handing_out[name] = set()
        self.sessions[name] += 1
        self.consumers.pop(name, None)
        self.owners = {at: owner for at, owner in self.owners.items() if owner[0] != name}
        if died:
            del self.machines[name]
            self.losing.discard(name)
        else:
            self.losing.add(name)
        self.notify()

    def step(
        self, name: str, *, carried_out: bool = True, answered: bool = True, expires: bool = False
    ) -> bool:
        """Take one action of a consumer; return whether it is settled.

        ``carried_out``, ``answered``: the fate of its request. ``expires``: the session ends just before it.
        """
        machine = self.machines[name]
        if name in self.losing:
            self.losing.discard(name)
            machine.lost()
        action = machine.next()
        if action is None:
            return True
        if expires:
            self.expire(name)
        report = self.carry_out(name, machine, action) if carried_out else None
        if carried_out and answered and report is not None:
            report()
        else:
            machine.changed()
        self.check()
        return False

    def carry_out(self, name: str, machine: Rebalance, action: Action) -> Callable[[], object]:
        """Carry it out in ZooKeeper and the streams; return how to report it."""
        me = (name, self.sessions[name])
        match action:
            case Register():
                self.consumers[name] = self.sessions[name]
                self.notify()
                return machine.registered
            case Read():
                self.watching.add(name)
                found = {one: {"t": 2} for one in self.consumers}
                return lambda: machine.read(found, {"t": range(self.partitions)})
            case Stop(partitions, _):
                self.handing_out[name].difference_update(partitions)
                return lambda: machine.stopped(partitions)
            case Release(partition):
                assert partition not in self.handing_out[name]
                if self.owners.get(partition, ())[:2] == me:
                    del self.owners[partition]
                return lambda: machine.released(partition)
            case Claim(partition, thread):
                assert thread in (thread_name(name, 0), thread_name(name, 1))
                if self.owners.setdefault(partition, (*me, thread)) == (*me, thread):
                    return lambda: machine.claimed(partition)
                return lambda: machine.refused(partition)
            case Start(partitions, thread):
                if name not in self.losing:  # otherwise its lease is over
                    assert all(self.owners[partition] == (*me, thread) for partition in partitions)
                    self.handing_out[name].update(partitions)
                return lambda: machine.started(partitions)
            case Wait():
                return machine.changed

    def check(self) -> None:
        live = Counter(at for owned in self.handing_out.values() for at in owned)
        assert all(count == 1 for count in live.values())


@given(st.data(), st.integers(0, 12))
def test_one_owner_at_any_time_and_all_owned_when_it_settles(data: st.DataObject, partitions: int) -> None:
    """Consumers come and go, sessions end, and requests fail, with or without an effect."""
    world = World(partitions)
    kinds = ["join", "step", "step", "step", "step", "unsent", "unanswered", "expire", "expire midway", "die"]
    for _ in range(data.draw(st.integers(0, 60))):
        here = sorted(world.machines)
        kind = data.draw(st.sampled_from(kinds))
        if kind == "join" or not here:
            absent = sorted(set("abcde") - set(here))
            if absent:
                world.join(data.draw(st.sampled_from(absent)))
            continue
        name = data.draw(st.sampled_from(here))
        if kind in ("expire", "die"):
            world.expire(name, died=kind == "die")
        else:
            world.step(
                name,
                carried_out=kind != "unsent",
                answered=kind != "unanswered",
                expires=kind == "expire midway",
            )
    for _ in range(1000):
        if all(list(map(world.step, sorted(world.machines)))):
            break
    else:
        raise AssertionError("it never settles")
    if world.machines:
        assert set(world.owners) == {("t", number) for number in range(partitions)}
        for name, machine in world.machines.items():
            assert machine.streaming == world.handing_out[name]


def settle(machine: Rebalance, until: Action | None = None) -> list[Action]:
    """Carry out all actions before this one successfully; it is the next one."""
    found = []
    while (action := machine.next()) != until:
        assert action is not None
        found.append(action)
        match action:
            case Register():
                machine.registered()
            case Read():
                machine.read({"a": {"t": 1}}, {"t": [0]})
            case Claim(partition, _):
                machine.claimed(partition)
            case Start(partitions, _):
                machine.started(partitions)
    return found


def test_a_start_that_fails_is_due_again() -> None:
    """ZooKeeper goes down between the claim and the first message, and returns in the same session."""
    machine, at = Rebalance("a"), ("t", 0)
    settle(machine, until=Start((at,), "a-0"))
    machine.changed()  # no report: the connection failed
    assert settle(machine) == [Read(), Start((at,), "a-0")]


def test_a_start_that_was_not_reported_is_stopped_before_its_partition_is_released() -> None:
    machine, at = Rebalance("a"), ("t", 0)
    settle(machine, until=Start((at,), "a-0"))
    machine.changed()  # no report: the stream may return messages
    assert machine.next() == Read()
    machine.read({"a": {"t": 1}}, {"t": []})
    assert machine.next() == Stop((at,), "a-0")
    machine.stopped([at])
    assert machine.next() == Release(at)


def test_a_claim_without_an_answer_is_made_again_or_taken_back() -> None:
    machine, at = Rebalance("a"), ("t", 0)
    settle(machine, until=Claim(at, "a-0"))
    machine.changed()
    assert machine.next() == Read()
    machine.read({"a": {"t": 1}}, {"t": [0]})
    assert machine.next() == Claim(at, "a-0")
    machine.changed()
    assert machine.next() == Read()
    machine.read({"a": {"t": 1}}, {"t": []})
    assert machine.next() == Release(at)
    machine.released(at)
    assert machine.next() is None
    assert machine.nodes == ()


def test_a_release_without_an_answer_leads_to_another_claim() -> None:
    """The partition returns meanwhile, so nobody knows whether its owner node still exists."""
    machine, at = Rebalance("a"), ("t", 0)
    settle(machine)
    machine.changed()
    assert machine.next() == Read()
    machine.read({"a": {"t": 1}}, {"t": []})
    assert machine.next() == Stop((at,), "a-0")
    machine.stopped([at])
    assert machine.next() == Release(at)
    machine.changed()
    assert settle(machine) == [Read(), Claim(at, "a-0"), Start((at,), "a-0")]


def test_a_partition_that_cannot_start_holds_up_no_other() -> None:
    machine, first, second = Rebalance("a"), ("t", 0), ("t", 1)
    for action in (Register(), Read()):
        assert machine.next() == action
        if action == Register():
            machine.registered()
    machine.read({"a": {"t": 1}}, {"t": [0, 1]})
    for at in (first, second):
        assert machine.next() == Claim(at, "a-0")
        machine.claimed(at)
    assert machine.next() == Start((first, second), "a-0")
    machine.postponed([first])
    machine.started([second])
    assert machine.next() == Wait()
    machine.changed()
    assert machine.next() == Read()
    machine.read({"a": {"t": 1}}, {"t": [0, 1]})
    assert machine.next() == Start((first,), "a-0")


def test_a_stream_is_of_one_topic() -> None:
    machine = Rebalance("a")
    machine.next()
    machine.registered()
    machine.next()
    machine.read({"a": {"t": 1, "u": 1}}, {"t": [0], "u": [0]})
    done = settle(machine)
    assert done[2:] == [Start((("t", 0),), "a-0"), Start((("u", 0),), "a-0")]


def test_many_partitions_start_and_stop_together_by_stream() -> None:
    count = 2 * AT_ONCE + 10
    machine, numbers = Rebalance("a"), range(2 * count)
    machine.next()
    machine.registered()
    machine.next()
    machine.read({"a": {"t": 2}}, {"t": numbers})
    done = settle(machine)
    started = [(len(one.partitions), one.thread) for one in done if isinstance(one, Start)]
    each = [AT_ONCE, AT_ONCE, 10]
    assert sorted(started, key=itemgetter(1)) == [(size, "a-0") for size in each] + [
        (size, "a-1") for size in each
    ]
    kinds = [type(one) for one in done]
    assert kinds.index(Start) == AT_ONCE, "the first messages wait for no more claims"
    assert machine.streaming == {("t", number) for number in numbers}
    machine.changed()
    assert machine.next() == Read()
    machine.read({"a": {"t": 2}}, {"t": []})
    for size, thread in [(size, thread) for thread in ("a-0", "a-1") for size in each]:
        stop = machine.next()
        assert isinstance(stop, Stop)
        assert (len(stop.partitions), stop.thread) == (size, thread)
        machine.stopped(stop.partitions)
    assert isinstance(machine.next(), Release)


def test_a_change_while_the_registry_is_read_is_seen() -> None:
    machine = Rebalance("a")
    machine.next()
    machine.registered()
    assert machine.next() == Read()
    machine.changed()  # a watch of that read fires before its result is reported
    machine.read({"a": {"t": 1}}, {"t": [0]})
    assert machine.next() == Read()


def test_a_lease_ends_before_its_session_and_with_it() -> None:
    lease = Lease()
    assert lease.until == 0
    lease.renew(1, 10.0, 6.0)
    assert lease.until == 0  # no claims were made in that session
    lease.begin(1)
    lease.renew(1, 10.0, 6.0)
    assert lease.until == 14.0
    lease.renew(1, 9.0, 6.0)
    assert lease.until == 14.0  # a late response does not shorten it
    lease.begin(2)
    lease.renew(1, 20.0, 6.0)
    assert lease.until == 0
    lease.renew(2, 20.0, 6.0)
    lease.end()
    lease.renew(2, 30.0, 6.0)
    assert lease.until == 0
