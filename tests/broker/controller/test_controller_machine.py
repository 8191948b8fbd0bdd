"""The controller's machine: states as they are written and announced, and how long a failover takes."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from millstream_broker.controller import queries
from millstream_broker.controller.messages import (
    Push,
    StatesWritten,
    WriteStates,
)
from millstream_broker.coordination import BrokerRecord
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    StatesChanged,
)
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import HELD_BACK, Controller, of, told, topic


def test_nobody_is_told_that_a_leader_without_memory_leads() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.epochs[1] = 9
    controller.unclean = {1}
    out = controller.decide(BrokersChanged(controller.brokers()))
    assert told(controller, ("t", 0)) == [HELD_BACK], "the new leader is not stored yet"
    (write,) = of(WriteStates, out)
    stored = {key: replace(one, version=one.version + 1) for key, one in write.states.items()}
    controller.decide(StatesWritten(write.states, stored))
    assert told(controller, ("t", 0)) == [(2, 1)]


def test_a_leader_is_told_of_while_the_state_of_its_follower_is_written() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.is_slow = True
    assert of(WriteStates, controller.restart(2))
    assert told(controller, ("t", 0)) == [(1, 0)]


def test_what_could_not_be_told_for_a_while_is_told_in_the_end() -> None:
    """The notification of a write may arrive before its response."""
    controller = Controller(topic("t", (1, 2)))
    (write,) = of(WriteStates, controller.decide(BrokersChanged({1: BrokerRecord(1, (), None, 7)})))
    stored = {key: replace(one, version=one.version + 1) for key, one in write.states.items()}
    controller.decide(StatesChanged(stored))
    assert told(controller, ("t", 0)) == [HELD_BACK]
    (push,) = of(Push, controller.decide(StatesWritten(write.states, stored)))
    assert set(push.partitions or ()) == {("t", 0)}
    assert told(controller, ("t", 0)) == [(1, 1)]


def test_a_conflict_is_decided_on_again() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    out = controller.decide(BrokersChanged({one: BrokerRecord(one, (), None, 1) for one in (2, 3)}))
    (write,) = of(WriteStates, out)
    by_leader = replace(controller.record("t"), isr=(1, 3), version=1)
    (again,) = of(WriteStates, controller.decide(StatesWritten(write.states, {("t", 0): by_leader})))
    (wanted,) = again.states.values()
    assert (wanted.leader, wanted.isr, wanted.version) == (3, (3,), 1)


def test_partitions_without_a_leader_are_written_first() -> None:
    controller = Controller(topic("a", (2, 1)), topic("b", (1, 2)), topic("c", (2, 1)))
    first, second = of(WriteStates, controller.live(2, 3))
    assert set(first.states) == {("b", 0)}
    assert set(second.states) == {("a", 0), ("c", 0)}


def test_a_state_that_is_known_is_not_news() -> None:
    controller = Controller(topic("t", (1, 2)))
    for record in (controller.record("t"), replace(controller.record("t"), isr=(1,), version=-1)):
        assert not controller.handle(StatesChanged({("t", 0): record}))


def test_an_answer_about_some_partitions_says_nothing_of_the_others() -> None:
    """Reading goes on past partitions that were not requested or that the store does not know."""
    controller = Controller(topic("t", (1, 2), (1, 2)))
    controller.is_slow = True
    (write,) = of(WriteStates, controller.live(2, 3))
    unknown = {("unknown", 0): controller.record("t", 0)}
    stored = {("t", 1): replace(write.states["t", 1], version=1)}
    asked = {**unknown, ("t", 0): write.states["t", 0], ("t", 1): write.states["t", 1]}
    (again,) = of(WriteStates, controller.handle(StatesWritten(asked, {**unknown, **stored})))
    assert set(again.states) == {("t", 0)}
    assert controller.record("t", 1).leader == 2


# Duration


def fail_over(partitions: int) -> float:
    """The processor's time until each partition of a dead leader has another one."""
    replicas = [tuple((index + place) % 3 + 1 for place in range(3)) for index in range(partitions // 10)]
    topics = [topic(f"t{number}", *replicas) for number in range(10)]
    begun = time.process_time()
    controller = Controller(*topics, brokers=(2, 3))
    assert to_the_end(queries.count(controller.machine))[0] == 0
    return time.process_time() - begun


def test_failing_over_takes_a_few_hundred_calls_for_each_partition() -> None:
    """So ten thousand partitions take well under two seconds: half a second where a call takes 0.2 µs."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        fail_over(1000)
    finally:
        sys.setprofile(before)
    assert calls < 500 * 1000


def test_failing_over_ten_times_as_many_partitions_takes_about_ten_times_as_long() -> None:
    few, many = (min(fail_over(count) for _ in range(3)) for count in (1000, 10_000))
    assert many < 30 * few
