"""The controller's machine with a store that was restored from an older copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    AcceptBroker,
    AskLogEnds,
    ComparisonWaits,
    ElectionRequested,
    ElectionType,
    LogEnds,
    Settings,
    StopReplicas,
    Tick,
    WriteStates,
)
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    Image,
    TopicsChanged,
)
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, of, topic


def arrive(controller: Controller, *ahead: int, live: tuple[int, ...] = ()) -> list[Any]:
    """These brokers register, ahead of the store; `live` are the others."""
    for one in ahead:
        controller.epochs[one] = controller.epochs.get(one, 0) + 10
    controller.epochs = {one: controller.epochs[one] for one in {*ahead, *live}}
    brokers = {
        one: replace(broker, ahead=5 if one in ahead else 0) for one, broker in controller.brokers().items()
    }
    return controller.handle(BrokersChanged(brokers))


def ends_of(controller: Controller, broker: int, **ends: tuple[int, int]) -> list[Any]:
    return controller.handle(
        LogEnds(broker, controller.epochs[broker], {(name, 0): end for name, end in ends.items()})
    )


NO_LOG = (-1, -1)


def test_a_store_that_is_older_is_not_believed_about_any_partition() -> None:
    """Nobody leads until every live broker was asked; the most complete log leads, in an epoch above all others."""
    controller = Controller(topic("t", (1, 2, 3)), topic("u", (3, 2, 1)), settings=Settings(min_isr=2))
    seen = arrive(controller, 1, live=(2, 3))
    records = [controller.record(name) for name in "tu"]
    assert [(one.leader, one.doubted, one.suspects) for one in records] == [
        (-1, True, (1, 2, 3)),
        (-1, True, (3, 2, 1)),
    ]
    assert [one.leader_epoch for one in records] == [6, 6]
    assert {(one.broker, key) for one in of(AskLogEnds, seen) for key in one.partitions} == {
        (broker, (name, 0)) for broker in (1, 2, 3) for name in "tu"
    }
    (accept,) = of(AcceptBroker, seen)
    assert seen.index(accept) > max(seen.index(one) for one in of(WriteStates, seen))
    ends_of(controller, 1, t=(4, 200), u=(4, 100))
    ends_of(controller, 3, t=(4, 300), u=(9, 50))
    assert [controller.record(name).leader for name in "tu"] == [-1, -1]
    ends_of(controller, 2, t=(5, 100), u=(9, 50))
    records = [controller.record(name) for name in "tu"]
    assert [(one.leader, one.isr, one.doubted, one.suspects) for one in records] == [
        (2, (2,), False, ()),
        (3, (3,), False, ()),
    ]
    assert [(one.leader_epoch, one.compared) for one in records] == [(7, 7), (10, 10)]


def test_a_broker_without_replicas_is_accepted_after_its_doubt_is_stored() -> None:
    """What it shows about the store concerns all partitions."""
    controller = Controller(topic("t", (1, 2, 3)), brokers=(1, 2, 3, 4))
    controller.is_slow = True
    seen = arrive(controller, 4, live=(1, 2, 3))
    assert [one.broker.broker_id for one in of(AcceptBroker, seen + controller.write())] == [4]
    assert of(AcceptBroker, seen) == []


def test_a_broker_that_lost_records_waits_for_the_states_of_its_own_replicas() -> None:
    controller = Controller(topic("t", (1, 2, 3)), brokers=(1, 2, 3, 4))
    controller.is_slow = True
    assert of(AcceptBroker, controller.restart(4, unclean=True)) != [], "it has none"
    assert of(AcceptBroker, controller.restart(1, unclean=True)) == []
    assert of(AcceptBroker, controller.write()) != []


def test_brokers_that_the_store_knows_may_have_logs() -> None:
    """No live broker has one, so the partition may have been moved to broker 9, which is down."""
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2), known=(9,))
    arrive(controller, 1, live=(2, 3))
    for broker in (1, 2, 3):
        seen = ends_of(controller, broker, t=NO_LOG)
    assert controller.record("t").leader == -1
    assert waits(seen) == {(9,): (1, (("t", 0),))}


def test_an_old_isr_waits_for_enough_replicas() -> None:
    """Each acknowledged record was on two of three replicas: two are enough, one is not."""
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    controller.live(3)
    arrive(controller, 3)
    ends_of(controller, 3, t=(4, 100))
    assert controller.record("t").leader == -1
    arrive(controller, 1, live=(3,))
    ends_of(controller, 1, t=(4, 200))
    assert (controller.record("t").leader, controller.record("t").isr) == (1, (1,))


WAITS = "no leader until the logs are compared, because ZooKeeper was restored from an older copy"


@pytest.mark.parametrize(("brokers", "named"), [((3,), "broker 3"), ((1, 3), "some of brokers 1, 3")])
def test_wait_for_the_comparison_names_the_brokers_to_start(brokers: tuple[int, ...], named: str) -> None:
    assert (
        str(ComparisonWaits(brokers, 3, (("t", 0), ("t", 1))))
        == f"{WAITS}: t-0, t-1 and 1 more; start {named}"
    )


def waits(seen: list[Any]) -> dict[tuple[int, ...], tuple[int, tuple[Any, ...]]]:
    return {one.brokers: (one.partitions, one.examples) for one in of(ComparisonWaits, seen)}


def test_log_names_the_brokers_that_a_comparison_waits_for() -> None:
    names = [f"t{number}" for number in range(7)]
    topics = [*(topic(name, (1, 2, 3)) for name in names), topic("moved", (3,)), topic("u", (3, 4, 5))]
    controller = Controller(*topics, brokers=(1, 2, 3, 4, 5), settings=Settings(min_isr=2))
    controller.live(3)
    assert waits(arrive(controller, 3)) == {}, "broker 3 is asked first"
    seen = ends_of(controller, 3, **dict.fromkeys([*names, "u"], (4, 100)), moved=NO_LOG)
    assert waits(seen) == {
        (1, 2): (7, tuple((name, 0) for name in names[:5])),
        (1, 2, 4, 5): (1, (("moved", 0),)),
        (4, 5): (1, (("u", 0),)),
    }
    assert [str(one) for one in of(ComparisonWaits, seen) if one.brokers in ((1, 2), (4, 5))] == [
        f"{WAITS}: t0-0, t1-0, t2-0, t3-0, t4-0 and 2 more; start some of brokers 1, 2",
        f"{WAITS}: u-0; start some of brokers 4, 5",
    ]
    assert waits(controller.handle(Tick(1000.0))) == {}, "nothing has changed"
    assert waits(arrive(controller, 1, live=(3,))) == {}
    seen = ends_of(controller, 1, **dict.fromkeys(names, (4, 200)), moved=NO_LOG, u=NO_LOG)
    assert waits(seen) == {(2, 4, 5): (1, (("moved", 0),)), (4, 5): (1, (("u", 0),))}


@pytest.mark.parametrize("how", ["request", "configuration"])
def test_an_unclean_election_does_not_wait(how: str) -> None:
    settings = Settings(min_isr=2, unclean_election=how == "configuration")
    controller = Controller(topic("t", (1, 2, 3)), settings=settings)
    controller.live(3)
    arrive(controller, 3)
    ends_of(controller, 3, t=(4, 100))
    if how == "request":
        assert controller.record("t").leader == -1
        reply = controller.reply(ElectionRequested("caller", ElectionType.UNCLEAN, [("t", 0)]))
        assert reply == {("t", 0): None}
    assert (controller.record("t").leader, controller.record("t").doubted) == (3, False)


def test_a_partition_that_has_moved_since_is_led_where_its_log_is() -> None:
    """In the old store it is at broker 1, which has deleted it; broker 3 becomes a replica, and leads."""
    controller = Controller(topic("t", (1,)))
    controller.live(1, 2)
    arrive(controller, 1, live=(2,))
    ends_of(controller, 1, t=NO_LOG)
    ends_of(controller, 2, t=NO_LOG)
    assert controller.record("t").leader == -1, "it may be at a broker that is down"
    arrive(controller, 3, live=(1, 2))
    seen = ends_of(controller, 3, t=(4, 200))
    record = controller.record("t")
    assert (record.replicas, record.leader, record.isr) == ((1, 3), 3, (3,))
    assert not of(StopReplicas, seen)


def test_a_partition_without_any_log_is_led_once_all_brokers_live() -> None:
    """Its topic was deleted since, or its logs were never created."""
    controller = Controller(topic("t", (1, 2)), topic("none", (2, 1), version=-1), brokers=(1, 2))
    controller.live(1)
    arrive(controller, 1)
    ends_of(controller, 1, t=NO_LOG, none=NO_LOG)
    assert [controller.record(name).leader for name in ("t", "none")] == [-1, -1]
    arrive(controller, 2, live=(1,))
    ends_of(controller, 2, t=NO_LOG, none=NO_LOG)
    assert [controller.record(name).leader for name in ("t", "none")] == [1, 2]


def test_a_broker_that_arrives_after_the_comparison_changes_nothing() -> None:
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    controller.live(1, 2)
    arrive(controller, 1, 2)
    ends_of(controller, 1, t=(4, 200))
    ends_of(controller, 2, t=(4, 100))
    before = controller.record("t")
    assert before.leader == 1
    seen = arrive(controller, 3, live=(1, 2))
    assert controller.record("t") == before
    assert [one.broker.broker_id for one in of(AcceptBroker, seen)] == [3]


def test_a_broker_that_is_ahead_makes_its_followers_of_an_old_state_wait() -> None:
    """Broker 3, which the old ISR has, led before another one showed that the store is old."""
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    controller.live(3)
    assert controller.record("t").leader == 3
    seen = arrive(controller, 1, live=(3,))
    assert controller.record("t").leader == -1
    assert {one.broker for one in of(AskLogEnds, seen)} == {1, 3}
    ends_of(controller, 3, t=(1, 100))
    ends_of(controller, 1, t=(7, 200))
    assert (controller.record("t").leader, controller.record("t").leader_epoch) == (1, 8)


def test_a_new_controller_continues_the_comparison() -> None:
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2))
    arrive(controller, 1, live=(2, 3))
    again = ControllerMachine(3, Settings(min_isr=2))
    stored = replace(topic("t"), partitions=(controller.record("t"),))
    out = to_the_end(again.start(Image(controller.brokers(), {"t": stored}, frozenset())))
    assert sorted(one.broker for one in of(AskLogEnds, out)) == [1, 2, 3]
    assert again.records["t", 0].leader == -1


def awaiting_a_broker_without_replica() -> Controller:
    """The comparison waits for broker 3, because its log would count, too."""
    controller = Controller(topic("t", (1, 2)), settings=Settings(min_isr=2))
    arrive(controller, 1, live=(2, 3))
    ends_of(controller, 1, t=(4, 200))
    ends_of(controller, 2, t=(4, 100))
    assert controller.record("t").leader == -1
    return controller


def test_a_broker_without_replica_that_registers_again_is_asked_again() -> None:
    controller = awaiting_a_broker_without_replica()
    controller.epochs[3] += 1
    assert [one.broker for one in of(AskLogEnds, controller.live(1, 2, 3))] == [3]
    ends_of(controller, 3, t=NO_LOG)
    assert controller.record("t").leader == 1


def test_a_broker_without_replica_that_leaves_is_not_waited_for() -> None:
    controller = awaiting_a_broker_without_replica()
    controller.live(1, 2)
    assert controller.record("t").leader == 1


def test_the_leader_elected_by_logs_keeps_away_from_epochs_that_nobody_here_knows() -> None:
    controller = Controller(topic("t", (1, 2, 3)), settings=Settings(min_isr=2), distance=1000)
    controller.live(1, 2)
    arrive(controller, 1, live=(2,))
    ends_of(controller, 1, t=(7, 200))
    ends_of(controller, 2, t=(4, 100))
    assert (controller.record("t").leader, controller.record("t").leader_epoch) == (1, 1008)


def test_a_partition_that_a_copy_may_have_forgotten_begins_with_a_random_epoch() -> None:
    """Unlike those that a topic has when it is created: its topic id is new."""
    controller = Controller(topic("found", (1, 2), version=-1), distance=1000)
    new = topic("new", (1, 2), version=-1)
    controller.handle(TopicsChanged({"new": new}, frozenset({"found", "new"})))
    grown = topic("new", (1, 2), (2, 3), version=-1)
    controller.handle(TopicsChanged({"new": grown}, frozenset({"found", "new"})))
    epochs = [controller.record(*key).leader_epoch for key in (("found", 0), ("new", 0), ("new", 1))]
    assert epochs == [1000, 0, 1000]
