"""The controller's machine: brokers that come, go, restart, and lose data."""

from __future__ import annotations

from dataclasses import replace

from millstream_broker.controller.messages import (
    AcceptBroker,
    BrokerAccepted,
    Push,
    WriteStates,
)
from millstream_broker.coordination.controllership import (
    BrokersChanged,
)
from millstream_harness.controller import Controller, of, topic


def test_a_broker_that_comes_is_told_everything_and_the_others_of_it() -> None:
    controller = Controller(topic("t", (1, 2)), brokers=())
    assert controller.live(1)[0] == Push((1,), None)
    controller = Controller(brokers=(1,))
    assert controller.live(1, 2) == [Push((2,), None), Push((1,), ())]
    assert not controller.live(1, 2), "that is known"
    assert controller.live(1) == [Push((1,), ())]
    assert not controller.live(), "nobody is left to be told"


def test_a_registration_that_changes_within_its_session_is_told_to_all() -> None:
    controller = Controller(brokers=(1, 2))
    registered = {**controller.brokers(), 2: replace(controller.brokers()[2], rack="a")}
    assert controller.handle(BrokersChanged(registered)) == [Push((1, 2), ())]


def test_who_is_accepted_is_known_to_be_before_the_registration_says_so() -> None:
    controller = Controller(topic("t", (1, 2)))
    (accept,) = of(AcceptBroker, controller.restart(1, unclean=True))
    assert not controller.handle(BrokerAccepted(accept.broker))
    controller.unclean = set()
    assert not controller.handle(BrokersChanged(controller.brokers()))


def test_an_acceptance_is_of_one_incarnation() -> None:
    controller = Controller(topic("t", (1, 2)))
    (accept,) = of(AcceptBroker, controller.restart(1, unclean=True))
    controller.restart(1, unclean=True)
    assert not controller.handle(BrokerAccepted(accept.broker))
    assert controller.machine.brokers[1].unclean
    gone = controller.machine.brokers[1]
    controller.live(2, 3)
    assert not controller.handle(BrokerAccepted(gone))
    assert 1 not in controller.machine.brokers


def test_who_restarts_between_two_looks_was_away() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    controller.restart(1)
    record = controller.record("t")
    assert (record.leader, record.leader_epoch, record.isr) == (2, 1, (2, 3))


def test_who_lost_its_memory_is_accepted_when_it_is_out_of_the_isrs() -> None:
    controller = Controller(topic("t", (1, 2, 3), (3, 1)))
    seen = controller.restart(1, unclean=True)
    assert controller.record("t", 0).isr == (2, 3)
    assert controller.record("t", 1).isr == (3,)
    (accept,) = of(AcceptBroker, seen)
    assert accept.broker.broker_id == 1
    assert seen.index(accept) > max(seen.index(one) for one in of(WriteStates, seen))
