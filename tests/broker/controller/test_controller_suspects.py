"""The controller's machine: all replicas that could lead may have lost data, so their logs decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream_broker.controller.machine import ControllerMachine
from millstream_broker.controller.messages import (
    AcceptBroker,
    AskLogEnds,
    ElectionRequested,
    ElectionType,
    LogEnds,
    Settings,
    WriteStates,
)
from millstream_broker.coordination.controllership import (
    DeletionsRequested,
    Image,
)
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.controller import Controller, of, topic


def all_suspects(*partitions: tuple[int, ...]) -> tuple[Controller, list[Any]]:
    """All brokers died at once and return one by one, unclean; also the machine's output for the last one."""
    controller = Controller(topic("t", *partitions))
    controller.live()
    seen: list[Any] = []
    for broker in (2, 3, 1):
        seen = controller.restart(broker, unclean=True)
        (accept,) = of(AcceptBroker, seen)
        assert accept.broker.broker_id == broker, "it does not wait for the others"
    return controller, seen


def log_ends(controller: Controller, broker: int, epoch: int, end: int) -> list[Any]:
    return controller.handle(LogEnds(broker, controller.epochs[broker], {("t", 0): (epoch, end)}))


def test_of_suspects_the_one_with_the_most_complete_log_leads() -> None:
    controller, seen = all_suspects((1, 2, 3))
    assert sorted((one.broker, tuple(one.partitions)) for one in of(AskLogEnds, seen)) == [
        (broker, (("t", 0),)) for broker in (1, 2, 3)
    ]
    assert (controller.record("t").leader, controller.record("t").isr) == (-1, (1, 2, 3))
    assert not of(WriteStates, log_ends(controller, 1, 4, 900))
    assert not of(WriteStates, log_ends(controller, 3, 5, 80))
    epoch = controller.record("t").leader_epoch
    log_ends(controller, 2, 5, 100)
    record = controller.record("t")
    assert (record.leader, record.isr, record.suspects) == (2, (2,), ())
    assert record.leader_epoch == epoch + 1
    assert not log_ends(controller, 3, 9, 900), "it is decided"


def test_a_wiped_replica_does_not_lead_where_one_that_left_the_isr_has_more() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live(1)
    assert controller.record("t").isr == (1,)
    controller.live(1, 2)
    seen = controller.restart(1, unclean=True)
    assert sorted(one.broker for one in of(AskLogEnds, seen)) == [1, 2]
    assert controller.record("t").leader == -1
    log_ends(controller, 1, -1, 0)
    log_ends(controller, 2, 0, 197)
    assert (controller.record("t").leader, controller.record("t").isr) == (2, (2,))


def test_a_suspect_that_goes_is_not_waited_for_and_one_that_restarts_is_asked_again() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    log_ends(controller, 3, 5, 80)
    seen = controller.restart(3)
    assert [one.broker for one in of(AskLogEnds, seen)] == [3]
    controller.handle(LogEnds(3, 1, {("t", 0): (5, 80)}))
    assert controller.record("t").leader == -1, "that was of an earlier incarnation"
    log_ends(controller, 3, 5, 70)
    controller.live(1, 3)
    assert controller.record("t").leader == 3


def test_what_a_suspect_said_counts_while_it_lives_on() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    log_ends(controller, 2, 5, 100)
    controller.live(1, 3)
    controller.restart(3)
    controller.handle(LogEnds(3, 10, {("t", 0): (5, 80)}))
    assert controller.record("t").leader == -1, "that was of an earlier incarnation"
    log_ends(controller, 3, 3, 70)
    assert controller.record("t").leader == 1, "the best log is away"


def test_a_new_controller_asks_suspects_anew() -> None:
    controller, _ = all_suspects((1, 2, 3))
    log_ends(controller, 1, 4, 900)
    again = ControllerMachine(3, Settings())
    image = Image(
        controller.brokers(),
        {"t": replace(topic("t"), partitions=(controller.record("t"),))},
        frozenset(),
    )
    out = to_the_end(again.start(image))
    assert sorted(one.broker for one in of(AskLogEnds, out)) == [1, 2, 3]


def test_a_member_that_vouches_ends_the_search() -> None:
    controller = Controller(topic("t", (1, 2, 3)))
    controller.live()
    controller.restart(2, unclean=True)
    controller.restart(1, unclean=True)
    assert (controller.record("t").isr, controller.record("t").suspects) == ((3,), (1, 2))
    assert not of(AskLogEnds, controller.restart(3))
    assert (controller.record("t").leader, controller.record("t").suspects) == (3, ())


def test_an_administrator_elects_a_suspect() -> None:
    controller = Controller(topic("t", (1, 2)))
    controller.live()
    controller.restart(2, unclean=True)
    assert controller.record("t").leader == -1
    answer = controller.reply(ElectionRequested("caller", ElectionType.UNCLEAN, [("t", 0)]))
    assert answer == {("t", 0): None}
    assert (controller.record("t").leader, controller.record("t").suspects) == (2, ())


def test_what_is_deleted_is_not_asked_for() -> None:
    controller, _ = all_suspects((1, 2, 3))
    controller.silent = {1, 2, 3}
    assert controller.machine.is_undecided(("t", 0))
    controller.handle(DeletionsRequested(frozenset({"t"})))
    assert not controller.machine.is_undecided(("t", 0))
    assert not of(WriteStates, log_ends(controller, 1, 4, 900))
    assert not of(AskLogEnds, controller.restart(2, unclean=True))
