"""The plan: drawn from a seed, with every kind of fault, never more at once than a cluster survives."""

from __future__ import annotations

import pytest

from millstream_faults.plan import CALM_EVERY, Group, Kind, draw, may_meet


def test_a_seed_gives_one_plan() -> None:
    assert draw(7, 50, list(Kind)) == draw(7, 50, list(Kind))
    assert draw(7, 50, list(Kind)) != draw(8, 50, list(Kind))


@pytest.mark.parametrize("seed", range(20))
def test_a_long_plan_has_everything(seed: int) -> None:
    steps = draw(seed, 200, list(Kind))
    faults = [fault for step in steps for fault in step.faults]
    assert len(faults) == 200
    assert {fault.kind for fault in faults} == set(Kind)
    assert sum(fault.kind is Kind.ZOOKEEPER_LONG_AWAY for fault in faults) == 1
    assert {len(step.faults) for step in steps} == {0, 1, 2}
    assert sum(step.calm for step in steps) >= len(steps) // CALM_EVERY // 2
    for step in steps:
        if len(step.faults) == 2:
            assert may_meet(*(fault.kind for fault in step.faults))
        for fault in step.faults:
            assert fault.kind.shortest <= fault.seconds <= fault.kind.longest


def test_only_what_is_possible_is_drawn() -> None:
    possible = [kind for kind in Kind if kind.group not in (Group.NETWORK, Group.DISK)]
    assert {fault.kind for step in draw(1, 99, possible) for fault in step.faults} < set(possible)


def test_one_broker_at_a_time() -> None:
    assert not may_meet(Kind.KILL_LEADER, Kind.CUT_FOLLOWER)
    assert not may_meet(Kind.FULL_DISK, Kind.PAUSE_LEADER)
    assert not may_meet(Kind.KILL_ZOOKEEPER, Kind.ZOOKEEPER_AWAY)
    assert may_meet(Kind.KILL_LEADER, Kind.ZOOKEEPER_AWAY)
    assert may_meet(Kind.ISOLATE_LEADER, Kind.MOVE_REPLICAS)
    assert not may_meet(Kind.WIPE_DISK, Kind.KILL_LEADER)


def test_a_replaced_tree_meets_nothing_that_it_would_forget() -> None:
    trees = [kind for kind in Kind if kind.group is Group.TREE]
    assert len(trees) == 5
    for kind in trees:
        meeting = {other.group for other in Kind if may_meet(kind, other)}
        assert meeting == {other.group for other in Kind if may_meet(other, kind)}
        assert meeting == {Group.GROUPS, Group.HOSTILITY, Group.CLOCK}


def test_a_wrong_clock_meets_everything_but_another() -> None:
    assert {other.group for other in Kind if may_meet(Kind.CLOCK_AHEAD, other)} == {*Group} - {Group.CLOCK}


def test_administration_meets_everything_but_itself() -> None:
    assert may_meet(Kind.MAKE_ANEW, Kind.KILL_LEADER)
    assert may_meet(Kind.MAKE_ANEW, Kind.MOVE_REPLICAS)
    assert may_meet(Kind.DELETE_GROUP, Kind.MAKE_ANEW)
    assert may_meet(Kind.FORGED_REQUESTS, Kind.ALTER_CONFIG)
    assert not may_meet(Kind.MAKE_ANEW, Kind.DELETE_RECORDS)


def test_security_meets_everything_but_itself_and_the_tree() -> None:
    """A restored tree would bring back a password or a rule while the fault waits for its end."""
    meeting = {other.group for other in Kind if may_meet(Kind.REVOKE_RULES, other)}
    assert meeting == {*Group} - {Group.SECURITY, Group.TREE}
