"""Committed offsets: commits, visibility, expiry, deletion."""

from __future__ import annotations

import struct

import pytest

from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import Commit, GroupConfig, OffsetToCommit
from millstream_harness.group_machine import START, Machine
from millstream_kafka.protocol.errors import ErrorCode

NONE = ErrorCode.NONE
OK = {("t", 0): NONE}


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


def test_commit_is_visible_and_answered_when_it_is_stored() -> None:
    machine = Machine()
    machine.hold = True
    commit = machine.commit(7, metadata="as given")
    assert commit.waits
    assert machine.committed() is None
    machine.release()
    assert commit.result == OK
    found = machine.coordinator.offsets.fetch("g", None).offsets["t", 0]
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 3, "as given")
    assert (found.commit_timestamp, found.expire_timestamp) == (START, -1)
    assert machine.reloaded().committed() == 7


def test_failed_commit_is_not_acknowledged_and_changes_nothing() -> None:
    machine = Machine()
    assert machine.commit(7).result == OK
    for cause, told in [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ]:
        machine.fail_with = cause
        assert machine.commit(8).result == {("t", 0): told}
        assert machine.committed() == 7


def test_of_two_commits_the_later_in_the_log_counts_whichever_is_stored_first() -> None:
    machine = Machine()
    machine.hold = True
    machine.commit(1)
    machine.commit(2)
    machine.held.reverse()
    machine.release()
    machine.release()
    assert machine.committed() == 2


def test_who_may_commit() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1)
    refused = {
        ErrorCode.UNKNOWN_MEMBER_ID: [
            machine.commit(1),
            machine.commit(1, member="x", generation=generation),
        ],
        ErrorCode.ILLEGAL_GENERATION: [
            machine.commit(1, member=leader, generation=generation - 1),
            machine.commit(1, group="new", member="x", generation=3),
            machine.commit(1, group="new", generation=0),
        ],
    }
    for error, calls in refused.items():
        assert [call.result for call in calls] == [{("t", 0): error}] * len(calls)
    assert machine.commit(1, member=leader, generation=generation).result == OK
    newcomer = machine.join(client="b")
    assert machine.commit(2, member=leader, generation=generation).result == OK, "allowed while members join"
    machine.join(leader)
    late = machine.commit(3, member=leader, generation=newcomer.joined.generation)
    assert late.result == {("t", 0): ErrorCode.REBALANCE_IN_PROGRESS}
    assert machine.committed() == 2


def test_who_names_a_generation_commits_as_a_member() -> None:
    machine = Machine()
    assert machine.commit(1).result == OK
    refused = machine.commit(2, generation=0)
    assert refused.result == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert machine.committed() == 1


def test_static_member_that_was_replaced_cannot_commit() -> None:
    machine = Machine()
    first = machine.join(instance="a").joined.member_id
    machine.sync(first, 1, {}, instance="a")
    second = machine.join(instance="a").joined.member_id
    stale = machine.commit(1, member=first, generation=1, instance="a")
    assert stale.result == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}
    assert machine.commit(1, member=second, generation=1, instance="a").result == OK


@pytest.mark.parametrize(("metadata", "error"), [("", NONE), ("x" * 11, ErrorCode.OFFSET_METADATA_TOO_LARGE)])
def test_commit_counts_as_a_heartbeat(metadata: str, error: ErrorCode) -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=0, offset_metadata_max_bytes=10))
    (leader,), generation = machine.stable(1)
    for _ in range(3):
        machine.wait(9_000)
        committed = machine.commit(1, metadata=metadata, member=leader, generation=generation)
        assert committed.result == {("t", 0): error}


def test_metadata_is_bounded() -> None:
    machine = Machine(GroupConfig(offset_metadata_max_bytes=10))
    assert machine.commit(1, metadata="x" * 10).result == OK
    assert machine.commit(2, metadata="x" * 11).result == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert machine.committed() == 1


def test_offset_whose_metadata_is_too_large_costs_no_other_of_its_commit() -> None:
    machine = Machine(GroupConfig(offset_metadata_max_bytes=10))
    call = machine.call("commit several")
    offsets = [
        OffsetToCommit("t", partition, 5, metadata="x" * length) for partition, length in enumerate((11, 10))
    ]
    machine.coordinator.offsets.commit(call, Commit("g", offsets))
    machine.carry_out()
    assert call.result == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE, ("t", 1): NONE}
    assert (machine.committed(partition=0), machine.committed(partition=1)) == (None, 5)


def test_group_without_members_may_have_the_empty_name() -> None:
    machine = Machine()
    assert machine.commit(4, group="").result == OK
    assert machine.committed(group="") == 4
    described = machine.coordinator.describe("")
    assert (described.error, described.state) == (NONE, GroupState.EMPTY)
    refused = machine.delete_offsets([("t", 0)], group="").result
    assert refused.error is ErrorCode.INVALID_GROUP_ID, "as Kafka has it, for this one request"
    assert machine.delete("").result is NONE
    assert machine.delete("").result is ErrorCode.GROUP_ID_NOT_FOUND
    assert machine.stored_groups() == []


def test_offsets_go_with_their_topic() -> None:
    machine = Machine()
    machine.commit(1)
    machine.commit(1, topic="other")
    machine.delete_topic("t")
    assert (machine.committed(), machine.committed(topic="other")) == (None, 1)
    assert machine.reloaded().committed() is None


def test_describing_and_listing() -> None:
    machine = Machine()
    (leader,), _ = machine.stable(1)
    machine.commit(1, group="simple")
    described = machine.coordinator.describe("g")
    assert (described.state, described.protocol) == (GroupState.STABLE, "range")
    (member,) = described.members
    assert (member.client_id, member.client_host) == ("m1", "/h")
    assert (member.metadata, member.assignment) == (b"topics", f"for {leader}".encode())
    machine.join(client="b")
    described = machine.coordinator.describe("g")
    assert (described.state, described.protocol) == (GroupState.PREPARING_REBALANCE, "")
    assert [one.metadata for one in described.members] == [b"", b""]
    listed = machine.coordinator.list_groups
    assert [(one.group_id, one.protocol_type) for one in listed()[1]] == [("g", "consumer"), ("simple", "")]
    assert [one.group_id for one in listed(["empty"])[1]] == ["simple"]
    assert [one.group_id for one in listed(["PreparingRebalance", "Stable"])[1]] == ["g"]
    assert listed(["Nonsense"])[1] == []
