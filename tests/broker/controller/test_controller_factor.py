"""The controller gives internal topics the replicas that they were created without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from millstream_broker.controller import queries
from millstream_broker.controller.messages import (
    FactorRaised,
    ReassignmentRequested,
    Settings,
    SettingsChanged,
    ShutdownRequested,
    Tick,
    WriteAssignment,
)
from millstream_broker.coordination import BrokerRecord
from millstream_broker.coordination.controllership import BrokersChanged, DeletionsRequested, TopicsChanged
from millstream_broker.runtime.steps import to_the_end
from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millstream_harness.controller import Controller, of, topic

THREE = Settings(offsets_factor=3)


def created_with_one(*brokers: int, partitions: int = 4, settings: Settings = THREE) -> Controller:
    """Broker 1 was alone when the topic was created."""
    return Controller(
        topic(OFFSETS_TOPIC, *[(1,)] * partitions),
        topic("t", (1,)),
        brokers=brokers or (1,),
        settings=settings,
    )


def replicas(controller: Controller) -> list[tuple[int, ...]]:
    records = controller.machine.records
    return [record.replicas for (name, _), record in sorted(records.items()) if name == OFFSETS_TOPIC]


def missing(controller: Controller) -> int:
    return to_the_end(queries.count(controller.machine))[2]


def copied(controller: Controller, partition: int) -> None:
    """The new replicas are in sync."""
    record = controller.record(OFFSETS_TOPIC, partition)
    controller.in_sync(OFFSETS_TOPIC, partition, *record.isr, *record.adding)


def test_brokers_that_register_get_the_missing_replicas() -> None:
    controller = created_with_one()
    assert of(WriteAssignment, controller.handle(Tick(1.0))) == []
    assert missing(controller) == 8
    controller.live(1, 2, 3)
    seen = controller.handle(Tick(2.0))
    assert of(FactorRaised, seen) == [FactorRaised(OFFSETS_TOPIC, 4, 3)]
    assert replicas(controller) == [(1, 2, 3)] * 4
    assert missing(controller) == 8, "nothing is copied yet"
    assert of(WriteAssignment, controller.handle(Tick(3.0))) == [], "it has begun"
    for partition in range(4):
        copied(controller, partition)
    assert missing(controller) == 0
    assert [controller.record(OFFSETS_TOPIC, one).leader for one in range(4)] == [1] * 4
    assert controller.record("t").replicas == (1,), "other topics have their own factors"
    assert of(WriteAssignment, controller.handle(Tick(4.0))) == []


def test_transactions_have_a_factor_of_their_own() -> None:
    controller = Controller(
        topic(OFFSETS_TOPIC, (1,)),
        topic(TRANSACTIONS_TOPIC, (1,), (2,)),
        brokers=(1, 2, 3),
        settings=Settings(offsets_factor=3, transactions_factor=2),
    )
    controller.handle(Tick(1.0))
    assert len(controller.record(OFFSETS_TOPIC).replicas) == 3
    assert [len(controller.record(TRANSACTIONS_TOPIC, index).replicas) for index in (0, 1)] == [2, 2]


def test_a_cluster_of_two_gets_two_and_a_third_later() -> None:
    controller = created_with_one(1, 2)
    controller.handle(Tick(1.0))
    assert replicas(controller) == [(1, 2)] * 4
    controller.live(1, 2, 3)
    controller.handle(Tick(2.0))
    assert replicas(controller) == [(1, 2, 3)] * 4, "even while the second is being copied"
    assert of(FactorRaised, controller.handle(Tick(3.0))) == []
    for partition in range(4):
        copied(controller, partition)
    assert missing(controller) == 0


def test_new_replicas_are_spread_over_the_brokers() -> None:
    controller = created_with_one(1, 2, 3, 4, partitions=12, settings=Settings(offsets_factor=2))
    controller.handle(Tick(1.0))
    counts = Counter(broker for one in replicas(controller) for broker in one)
    assert counts == {1: 12, 2: 4, 3: 4, 4: 4}


def test_brokers_that_have_fewest_get_new_replicas() -> None:
    """Each new replica counts as one of those that are there."""
    assigned = [(1,), (1,), (1,), (2, 1), (2, 1)]
    controller = Controller(
        topic(OFFSETS_TOPIC, *assigned), brokers=(1, 2, 3), settings=Settings(offsets_factor=2)
    )
    controller.handle(Tick(1.0))
    assert [one[-1] for one in replicas(controller)[:3]] == [3, 3, 2]


def test_new_replicas_go_to_other_racks_first() -> None:
    controller = created_with_one(partitions=6, settings=Settings(offsets_factor=2))
    racks = {1: "a", 2: "a", 3: "b"}
    brokers = {number: BrokerRecord(number, (), rack, 1) for number, rack in racks.items()}
    controller.handle(BrokersChanged(brokers))
    controller.handle(Tick(1.0))
    assert replicas(controller) == [(1, 3)] * 6


def test_a_broker_without_a_rack_is_a_rack_of_its_own() -> None:
    controller = created_with_one(partitions=1, settings=Settings(offsets_factor=2))
    brokers = {
        number: BrokerRecord(number, (), rack, 1) for number, rack in {1: None, 2: None, 3: "a"}.items()
    }
    controller.handle(BrokersChanged(brokers))
    controller.handle(Tick(1.0))
    assert replicas(controller) == [(1, 2)]


def test_a_broker_that_is_about_to_stop_gets_none() -> None:
    controller = created_with_one(1, 2, 3)
    controller.handle(ShutdownRequested("c", 3, 1))
    controller.handle(Tick(1.0))
    assert replicas(controller) == [(1, 2)] * 4


def test_replicas_of_a_broker_that_is_down_count() -> None:
    controller = Controller(topic(OFFSETS_TOPIC, (1, 2, 3)), brokers=(1, 2, 4), settings=THREE)
    assert of(WriteAssignment, controller.handle(Tick(1.0))) == []
    assert missing(controller) == 0


def test_more_replicas_than_configured_stay() -> None:
    controller = Controller(topic(OFFSETS_TOPIC, (1, 2, 3)), settings=Settings(offsets_factor=1))
    assert of(WriteAssignment, controller.handle(Tick(1.0))) == []
    assert replicas(controller) == [(1, 2, 3)]


def test_the_factor_may_be_configured_later() -> None:
    controller = created_with_one(1, 2, 3, settings=Settings())
    controller.handle(Tick(1.0))
    assert replicas(controller) == [(1,)] * 4
    controller.handle(SettingsChanged(THREE))
    controller.handle(Tick(2.0))
    assert replicas(controller) == [(1, 2, 3)] * 4


def test_an_administrators_move_ends_first() -> None:
    controller = created_with_one(1, 2, 3, partitions=1)
    controller.handle(ReassignmentRequested("c", {(OFFSETS_TOPIC, 0): (2,)}))
    controller.handle(Tick(1.0))
    record = controller.record(OFFSETS_TOPIC)
    assert (record.replicas, record.removing) == ((2, 1), (1,))
    copied(controller, 0)
    controller.in_sync(OFFSETS_TOPIC, 0, 2)
    assert replicas(controller) == [(2,)]
    controller.handle(Tick(2.0))
    assert replicas(controller) == [(2, 1, 3)]
    copied(controller, 0)
    assert missing(controller) == 0


@pytest.mark.parametrize("gone", ["deleted", "unknown"])
def test_a_topic_that_is_gone_is_left_alone(gone: str) -> None:
    controller = created_with_one(1, 2, 3)
    controller.silent = {1}
    if gone == "deleted":
        controller.handle(DeletionsRequested(frozenset({OFFSETS_TOPIC})))
    else:
        controller.handle(TopicsChanged({}, frozenset({"t"})))
    assert of(WriteAssignment, controller.handle(Tick(1.0))) == []


def test_a_slow_store_is_asked_once() -> None:
    controller = created_with_one(1, 2, 3)
    controller.is_slow = True
    assert len(of(WriteAssignment, controller.handle(Tick(1.0)))) == 1
    assert of(WriteAssignment, controller.handle(Tick(2.0))) == []
    controller.write()
    assert replicas(controller) == [(1, 2, 3)] * 4


def test_the_metric_of_a_single_broker_is_zero() -> None:
    controller = created_with_one(settings=Settings())
    assert missing(controller) == 0
    assert replace(THREE, offsets_factor=1) == Settings()
