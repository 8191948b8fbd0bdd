"""Static members (KIP-345): a group.instance.id keeps its place in the group, whatever its member id."""

from __future__ import annotations

import pytest

from millstream_broker.groups.classic import LONGEST_NAME
from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import LeavingMember
from millstream_harness.group_machine import Machine
from millstream_kafka.protocol.errors import ErrorCode

NONE = ErrorCode.NONE


def test_static_member_comes_back_without_a_rebalance() -> None:
    machine = Machine()
    first = machine.join(instance="a").joined
    machine.sync(first.member_id, 1, {first.member_id: b"A"}, instance="a")
    back = machine.join(instance="a").joined
    assert back.error is NONE
    assert back.member_id != first.member_id
    assert (back.generation, back.leader, back.skip_assignment) == (1, first.member_id, False)
    assert machine.sync(back.member_id, 1, instance="a").synced.assignment == b"A"
    assert machine.heartbeat(first.member_id, 1, instance="a") is ErrorCode.FENCED_INSTANCE_ID
    assert machine.sync(first.member_id, 1, instance="a").synced.error is ErrorCode.FENCED_INSTANCE_ID
    assert machine.join(first.member_id, instance="a").joined.error is ErrorCode.FENCED_INSTANCE_ID
    assert machine.heartbeat(first.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert [*machine.stored_groups()[0].members] == [back.member_id]


def test_static_leader_that_comes_back_by_v9_leads_and_skips_the_assignment() -> None:
    machine = Machine()
    leader = machine.join(instance="a").joined.member_id
    machine.sync(leader, 1, {leader: b"A"}, instance="a")
    back = machine.join(instance="a", skip=True).joined
    assert (back.leader, back.skip_assignment) == (back.member_id, True)
    assert [member.instance_id for member in back.members] == ["a"]


def test_static_member_that_comes_back_with_another_choice_of_protocol_rebalances() -> None:
    machine = Machine()
    first = machine.join(instance="a", protocols={"x": b"", "y": b""}).joined
    machine.sync(first.member_id, 1, {}, instance="a")
    back = machine.join(instance="a", protocols={"y": b""}).joined
    assert (back.generation, back.protocol, back.leader) == (2, "y", back.member_id)


def test_static_member_whose_return_cannot_be_stored_keeps_its_former_id() -> None:
    machine = Machine()
    first = machine.join(instance="a").joined
    machine.sync(first.member_id, 1, {first.member_id: b"A"}, instance="a")
    machine.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.join(instance="a").joined.error is ErrorCode.NOT_COORDINATOR
    assert machine.heartbeat(first.member_id, 1, instance="a") is NONE


def test_static_member_coming_back_while_a_rebalance_completes_starts_another() -> None:
    machine = Machine()
    first = machine.join(instance="a").joined
    waiting = machine.join(client="b")
    machine.join(first.member_id, instance="a")
    follower = machine.sync(waiting.joined.member_id, 2)
    back = machine.join(instance="a")
    assert follower.synced.error is ErrorCode.REBALANCE_IN_PROGRESS
    machine.join(waiting.joined.member_id)
    assert back.joined.generation == 3


def test_waiting_double_of_a_static_member_is_fenced() -> None:
    machine = Machine()
    machine.stable(1)
    double = machine.join(instance="a")
    taking_over = machine.join(instance="a")
    assert double.joined.error is ErrorCode.FENCED_INSTANCE_ID
    assert taking_over.waits


def test_static_member_is_removed_by_its_instance_id_alone() -> None:
    machine = Machine()
    member = machine.join(instance="a").joined.member_id
    leave = machine.coordinator.classic.leave
    assert leave("g", [LeavingMember("other", "a"), LeavingMember("", "b")])[1] == [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert leave("g", [LeavingMember("", "a")]) == (NONE, [NONE])
    machine.carry_out()
    assert machine.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_does_not_drop_static_members_before_their_sessions_end() -> None:
    machine = Machine()
    static = machine.join(instance="a", session_ms=20_000, rebalance_ms=6_000).joined.member_id
    dynamic = machine.join(client="b", session_ms=20_000, rebalance_ms=6_000)
    machine.wait(6_000)
    assert {member.member_id for member in dynamic.joined.members} == {static, dynamic.joined.member_id}
    machine.wait(14_000)
    assert static not in machine.group().members


def test_static_member_that_came_back_is_answered_by_the_rebalance_that_began_meanwhile() -> None:
    machine = Machine()
    (leader,), _ = machine.stable(1)
    first = machine.join(instance="a")
    machine.join(leader)
    machine.sync(leader, 2, {})
    machine.sync(first.joined.member_id, 2, instance="a")
    machine.hold = True
    back = machine.join(instance="a")
    newcomer = machine.join(client="b")
    machine.release()
    assert back.waits
    machine.join(leader)
    assert newcomer.joined.generation == back.joined.generation == 3


def test_static_members_that_all_stay_away_end_no_rebalance() -> None:
    machine = Machine()
    options = {"session_ms": 20_000, "rebalance_ms": 6_000}
    silent = machine.join(instance="a", **options).joined.member_id
    leaving = machine.join(instance="b", **options)
    machine.join(silent, instance="a", **options)
    machine.leave(instance="b")
    generation = machine.group().generation
    machine.wait(19_999)
    group = machine.group()
    assert (group.state, group.generation) == (GroupState.PREPARING_REBALANCE, generation)
    machine.wait(1)
    assert (group.state, group.generation) == (GroupState.EMPTY, generation + 1)
    assert leaving.joined.generation == generation


def test_leader_stays_leader_while_it_joins() -> None:
    """Even beside an older member: a static one that led before and missed one rebalance."""
    machine = Machine()
    options = {"session_ms": 60_000, "rebalance_ms": 6_000}
    away = machine.join(instance="a", **options).joined.member_id
    newcomer = machine.join(client="b", **options)
    machine.wait(6_000)
    leader = newcomer.joined.member_id
    assert newcomer.joined.leader == leader, "who led has not joined"
    machine.sync(leader, 2, {})
    machine.sync(away, 2, instance="a")
    back = machine.join(away, instance="a", protocols={"range": b"changed"}, **options)
    machine.join(leader, **options)
    assert (back.joined.generation, back.joined.leader) == (3, leader)


def test_static_member_that_comes_back_at_once_is_stored_once() -> None:
    machine = Machine()
    machine.stable(1, instance="i")
    stored = len(machine.log)
    machine.join(instance="i")
    assert len(machine.log) == stored + 1


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_static_member_whose_return_is_stored_while_a_rebalance_runs_is_stored_by_that(
    error: ErrorCode,
) -> None:
    machine = Machine()
    machine.stable(1, instance="i")
    machine.hold = True
    machine.join(instance="i")
    machine.join(client="another")
    held = len(machine.held)
    machine.release(error)
    assert len(machine.held) == held - 1


def test_name_of_a_static_member_has_a_limit() -> None:
    machine = Machine()
    assert machine.join(instance="i" * LONGEST_NAME).joined.error is ErrorCode.NONE
    refused = machine.join(group="h", instance="i" * (LONGEST_NAME + 1)).joined
    assert refused.error is ErrorCode.INVALID_REQUEST
