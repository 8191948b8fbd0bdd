"""Writes that time out stay pending: they take effect when the high watermark passes them, and not before."""

from __future__ import annotations

import pytest

from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import DeleteOffsetsResult
from millstream_harness.group_machine import EXPIRING, RETENTION_MS, Machine
from millstream_kafka.protocol.errors import ErrorCode

NONE = ErrorCode.NONE
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
T0 = ("t", 0)


def with_position(offset: int = 7) -> Machine:
    machine = Machine()
    machine.commit(offset)
    machine.hold = True
    return machine


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TIMED_OUT, TIMED_OUT),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_deleted_group_is_gone_when_the_deletion_is_committed(error: ErrorCode, told: ErrorCode) -> None:
    machine = with_position()
    deletion = machine.delete()
    machine.time_out(error)
    assert deletion.result is told
    assert machine.committed() == 7
    machine.commit_late()
    assert machine.committed() is None
    assert "g" not in machine.coordinator.groups
    assert "g" not in machine.reloaded().coordinator.groups
    assert deletion.result is told, "it has one reply"


def test_a_position_is_committed_late() -> None:
    machine = with_position()
    commit = machine.commit(8)
    machine.time_out()
    assert commit.result == {T0: TIMED_OUT}
    assert machine.committed() == 7
    machine.commit_late()
    assert machine.committed() == 8
    assert len(commit.replies) == 1


def test_a_deleted_position_is_gone_late() -> None:
    machine = with_position()
    deletion = machine.delete_offsets([T0])
    machine.time_out()
    assert deletion.result == DeleteOffsetsResult(NONE, {T0: TIMED_OUT})
    assert machine.committed() == 7
    machine.commit_late()
    assert machine.committed() is None
    assert len(deletion.replies) == 1


def test_what_is_committed_after_a_late_deletion_stays() -> None:
    machine = with_position()
    machine.delete()
    machine.time_out()
    commit = machine.commit(9)
    machine.release()
    assert commit.result == {T0: NONE}
    assert machine.committed() == 9
    assert machine.reloaded().committed() == 9


def test_a_deletion_after_a_late_commit_removes_it() -> None:
    machine = with_position()
    machine.commit(8)
    machine.time_out()
    deletion = machine.delete()
    machine.time_out()
    machine.commit_late()
    assert deletion.result is TIMED_OUT
    assert "g" not in machine.coordinator.groups
    assert "g" not in machine.reloaded().coordinator.groups


def test_a_position_with_a_late_commit_does_not_expire() -> None:
    machine = Machine(EXPIRING)
    machine.commit(7)
    machine.hold = True
    machine.commit(8)
    machine.time_out()
    machine.wait(2 * RETENTION_MS)
    assert not machine.held
    machine.commit_late()
    assert machine.committed() == 8


def test_an_expired_position_is_removed_late() -> None:
    machine = Machine(EXPIRING)
    machine.commit(7)
    machine.hold = True
    machine.wait(2 * RETENTION_MS)
    while machine.held:
        machine.time_out()
    assert machine.committed() == 7
    machine.commit_late()
    assert machine.committed() is None


def test_another_coordinator_finds_the_fate_of_late_writes_in_the_log() -> None:
    machine = with_position()
    deletion = machine.delete()
    machine.time_out()
    partition = machine.coordinator.state.partition_of("g")
    machine.coordinator.unload(partition)
    machine.carry_out()
    assert len(deletion.replies) == 1
    assert "g" not in machine.reloaded().coordinator.groups
    machine.commit_late()  # after the end of this leadership: nothing to do
    assert machine.coordinator.groups == {}


def test_an_assignment_that_is_late_begins_another_rebalance() -> None:
    machine = Machine()
    member = machine.join().joined
    machine.hold = True
    sync = machine.sync(member.member_id, member.generation, {member.member_id: b"all"})
    while machine.held:
        machine.time_out()
    assert sync.synced.error is ErrorCode.REBALANCE_IN_PROGRESS
    machine.commit_late()
    assert machine.group().state is GroupState.PREPARING_REBALANCE
    again = machine.join(member.member_id).joined
    assert again.generation == member.generation + 1


def test_the_record_of_a_static_member_whose_return_was_late_is_corrected() -> None:
    machine = Machine()
    before = machine.join(instance="a").joined
    machine.sync(before.member_id, before.generation, {before.member_id: b"all"}, instance="a")
    machine.hold = True
    back = machine.join(instance="a")
    machine.time_out()
    assert back.joined.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.group().static == {"a": before.member_id}
    machine.hold = False
    machine.commit_late()
    assert machine.heartbeat(before.member_id, before.generation, instance="a") is NONE
    loaded = machine.reloaded()
    assert loaded.heartbeat(before.member_id, before.generation, instance="a") is NONE
