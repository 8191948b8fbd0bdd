"""Which broker restarts next: never one that a partition needs, the controller last, with the blocker named."""

from __future__ import annotations

import pytest

from millstream_operator.kafka.records import BrokersState, PartitionReplicas
from millstream_operator.reconcile.cluster.rolling import (
    Roll,
    RollingPod,
    plan_roll,
    restart_reasons,
    unreachable_minimums,
)

ALIVE = BrokersState(dict.fromkeys(range(3)), -1)


def pods(
    *stale: int, count: int = 3, down: tuple[int, ...] = (), ended: tuple[int, ...] = ()
) -> list[RollingPod]:
    return [
        RollingPod(
            broker,
            f"east-brokers-{broker}",
            broker not in down + ended,
            ("ConfigurationChanged",) if broker in stale else (),
            broker not in ended,
        )
        for broker in range(count)
    ]


def held(isr: tuple[int, ...] = (0, 1, 2), min_isr: int = 2) -> list[PartitionReplicas]:
    return [PartitionReplicas("orders", 4, (0, 1, 2), isr, min_isr)]


def test_nothing_to_do() -> None:
    roll = plan_roll(pods(), 3, held(), BrokersState(dict.fromkeys(range(3)), 0))
    assert (roll.restart, roll.blocked, roll.remaining) == (None, "", 0)


def test_one_at_a_time_and_the_controller_last() -> None:
    order, stale = [], {0, 1, 2}
    while stale:
        restart = plan_roll(pods(*stale), 3, held(), BrokersState(dict.fromkeys(range(3)), 0)).restart
        assert restart is not None
        order.append(restart.number)
        stale.remove(restart.number)
    assert order == [1, 2, 0]


def test_no_broker_restarts_while_zookeeper_does() -> None:
    """Except brokers that are down already: ZooKeeper's update may repair them."""
    waits = Roll(blocked="waiting for ZooKeeper: 1 of 3 servers are restarted")
    roll = plan_roll(pods(0, 1, 2), 3, held(), ALIVE, waits)
    assert (roll.restart, roll.blocked, roll.remaining) == (None, waits.words, 3)
    ended = plan_roll(pods(0, 1, 2, ended=(1,)), 3, held(), ALIVE, waits).restart
    assert ended is not None
    assert ended.number == 1


def test_a_partition_without_a_replica_to_spare_blocks_and_is_named() -> None:
    roll = plan_roll(pods(0, 1, 2), 3, held(isr=(0, 1)), ALIVE)
    assert roll.restart is not None
    assert roll.restart.number == 2  # it is in no ISR: its restart loses nothing
    roll = plan_roll(pods(0, 1), 3, held(isr=(0, 1)), ALIVE)
    assert roll.restart is None
    assert roll.blocked == (
        "east-brokers-0 waits: orders-4 has 2 of 3 replicas in sync and must keep 2 without it"
    )
    assert plan_roll(pods(0), 3, 2 * held(isr=(0, 1)), ALIVE).blocked == f"{roll.blocked} and 1 more"
    assert plan_roll(pods(0), 3, 3 * held(isr=(0, 1)), ALIVE).blocked == f"{roll.blocked} and 2 more"


def test_a_broker_that_zookeeper_refuses_restarts_though_isrs_have_none_to_spare() -> None:
    """Such as one with a login from before: no other broker may follow it until it has the present one."""
    alone = BrokersState({1: None}, 1)
    roll = plan_roll(pods(0, 2), 3, held(isr=(1,)), alone)
    assert roll.words == "restarting east-brokers-0 (ConfigurationChanged); 2 to go"
    busy = Roll(blocked="waiting for ZooKeeper servers to be ready: z-1", is_usual=True)
    assert plan_roll(pods(0, 2), 3, held(isr=(1,)), alone, busy).restart is None
    assert plan_roll(pods(2, down=(0,)), 3, held(isr=(1,)), alone).restart is None, "one at a time"


def test_a_minimum_that_leaves_none_to_spare_is_clamped() -> None:
    assert plan_roll(pods(0), 3, held(min_isr=3), ALIVE).restart is not None
    assert unreachable_minimums(held(min_isr=3)) == ["orders"]
    assert unreachable_minimums(held(min_isr=2)) == []
    pair = [PartitionReplicas("pair", 0, (0, 1), (0, 1), 2)]
    assert unreachable_minimums(pair) == ["pair"]
    alone = [PartitionReplicas("single", 0, (0,), (0,), 1)]
    assert unreachable_minimums(alone) == []
    assert plan_roll(pods(0), 3, alone, ALIVE).restart is not None


def test_a_broker_that_is_down_holds_the_others_up() -> None:
    roll = plan_roll(pods(0, down=(2,)), 3, held(), ALIVE)
    assert (roll.restart, roll.blocked) == (None, "waiting for brokers to be ready: east-brokers-2")
    roll = plan_roll(pods(0, count=2), 3, held(), ALIVE)
    assert roll.blocked == "waiting for brokers to be ready: 2 of 3 pods are there"


@pytest.mark.parametrize(
    ("found", "brokers"),
    [
        (pods(0, 2, ended=(2,)), None),
        (pods(0, 2, down=(2,)), BrokersState({0: None, 1: None}, 0)),
        (pods(0, 2, down=(0,), ended=(2,)), ALIVE),
    ],
    ids=["its container has ended", "it is not registered", "beside others that are down"],
)
def test_a_broker_that_has_ended_in_an_old_revision_is_mended_first(
    found: list[RollingPod], brokers: BrokersState | None
) -> None:
    restart = plan_roll(found, 3, None if brokers is None else held(isr=(2,)), brokers).restart
    assert restart is not None
    assert restart.number == 2


def test_with_no_broker_ready_there_is_nobody_to_spare() -> None:
    restart = plan_roll(pods(1, 2, down=(0, 1, 2)), 3, None, None).restart
    assert restart is not None
    assert restart.number == 1


def test_a_broker_that_is_not_ready_but_in_sync_is_kept_while_partitions_need_it() -> None:
    """Another broker is down: without this one, acks=all would stop."""
    roll = plan_roll(pods(1, 2, down=(1, 2)), 3, held(isr=(0, 1)), ALIVE)
    assert roll.restart is not None
    assert roll.restart.number == 2  # it is in no ISR
    roll = plan_roll(pods(1, down=(1, 2)), 3, held(isr=(0, 1)), ALIVE)
    assert (roll.restart, roll.blocked) == (
        None,
        "east-brokers-1 waits: orders-4 has 2 of 3 replicas in sync and must keep 2 without it",
    )
    roll = plan_roll(pods(1, down=(1,)), 3, None, None)
    assert (roll.restart, roll.blocked) == (None, "the brokers do not answer")


def test_a_broker_that_has_just_gone_does_not_count_though_isrs_name_it_still() -> None:
    roll = plan_roll(pods(1, down=(1, 2)), 3, held(isr=(0, 1, 2)), ALIVE)
    assert (roll.restart, roll.blocked) == (
        None,
        "east-brokers-1 waits: orders-4 has 2 of 3 replicas in sync and must keep 2 without it",
    )


def test_a_broker_that_is_not_ready_and_can_be_spared_goes_first() -> None:
    roll = plan_roll(pods(0, 1, down=(1,)), 3, held(), ALIVE)
    assert roll.restart is not None
    assert roll.restart.number == 1


def test_brokers_that_do_not_answer_are_not_restarted() -> None:
    roll = plan_roll(pods(0), 3, None, ALIVE)
    assert (roll.restart, roll.blocked, roll.remaining) == (None, "the brokers do not answer", 1)


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({}, ()),
        ({"millstream.dev/config-hash": "2"}, ("ConfigurationChanged",)),
        ({"millstream.dev/template-hash": "2"}, ("PodTemplateChanged",)),
        (
            {"millstream.dev/listeners-hash": "2", "millstream.dev/template-hash": "2"},
            ("ListenersChanged",),
        ),
        ({"kubectl.kubernetes.io/restartedAt": "now"}, ("RestartRequested",)),
        ({"someone.else/annotation": "1"}, ()),
        ({"millstream.dev/addresses": '{"0":"out=:1","1":"out=:2","2":"out=:3"}'}, ()),
        ({"millstream.dev/addresses": '{"0":"out=:1","1":"out=:9"}'}, ("AddressChanged",)),
    ],
)
def test_reasons_are_named(change: dict[str, str], reasons: tuple[str, ...]) -> None:
    made = {
        "millstream.dev/config-hash": "1",
        "millstream.dev/listeners-hash": "1",
        "millstream.dev/template-hash": "1",
        "millstream.dev/addresses": '{"0":"out=:1","1":"out=:2"}',
    }
    assert restart_reasons(1, made, {**made, **change}) == reasons


def test_pods_of_an_older_operator_restart() -> None:
    assert restart_reasons(0, {}, {"millstream.dev/template-hash": "1"}) == ("PodTemplateChanged",)
