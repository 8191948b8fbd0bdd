"""Committed offsets: who may commit, what is visible when, what expires, what is deleted."""

from __future__ import annotations

import struct
import uuid

import pytest

from millstream_broker.groups import coordinator as coordinator_module
from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import GroupConfig, LeavingMember
from millstream_broker.protocol.errors import ErrorCode
from millstream_broker.protocol.schema import ZERO_UUID
from millstream_harness.group_machine import Machine

NONE = ErrorCode.NONE
OK = {("t", 0): NONE}
CONFIG = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    group_max_session_timeout_ms=10**9,
    offsets_retention_minutes=10,
    offsets_retention_check_interval_ms=60_000,
)
RETENTION_MS = 600_000


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
    found = machine.coordinator.fetch_offsets("g", None).offsets["t", 0]
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 3, "as given")
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


def test_static_member_that_was_replaced_cannot_commit() -> None:
    machine = Machine()
    first = machine.join(instance="a").joined.member_id
    machine.sync(first, 1, {}, instance="a")
    second = machine.join(instance="a").joined.member_id
    stale = machine.commit(1, member=first, generation=1, instance="a")
    assert stale.result == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}
    assert machine.commit(1, member=second, generation=1, instance="a").result == OK


def test_commit_counts_as_a_heartbeat() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1)
    for _ in range(3):
        machine.wait(9_000)
        assert machine.commit(1, member=leader, generation=generation).result == OK


def test_metadata_is_bounded() -> None:
    machine = Machine(GroupConfig(offset_metadata_max_bytes=10))
    assert machine.commit(1, metadata="x" * 10).result == OK
    assert machine.commit(2, metadata="x" * 11).result == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert machine.committed() == 1


def test_group_without_members_may_have_the_empty_name() -> None:
    machine = Machine()
    assert machine.commit(4, group="").result == OK
    assert machine.committed(group="") == 4


def test_simple_group_forgets_each_offset_when_its_time_is_over() -> None:
    machine = Machine(CONFIG)
    machine.commit(1, partition=0)
    machine.wait(RETENTION_MS // 2)
    machine.commit(2, partition=1)
    machine.wait(RETENTION_MS // 2)
    assert (machine.committed(partition=0), machine.committed(partition=1)) == (None, 2)
    machine.wait(RETENTION_MS // 2)
    assert machine.coordinator.list_groups() == (NONE, [])
    assert machine.stored_groups() == []


def test_retention_given_with_the_commit() -> None:
    machine = Machine(CONFIG)
    machine.commit(1, partition=0, retention_ms=60_000)
    machine.commit(1, partition=1, retention_ms=2 * RETENTION_MS)
    machine = machine.reloaded()
    machine.wait(RETENTION_MS + 60_000)
    assert (machine.committed(partition=0), machine.committed(partition=1)) == (None, 1)


def test_group_with_members_keeps_what_it_consumes() -> None:
    machine = Machine(CONFIG)
    options = {"protocols": {"range": subscription("t")}, "session_ms": 10 * RETENTION_MS}
    (leader,), generation = machine.stable(1, **options)
    machine.commit(1, member=leader, generation=generation)
    machine.commit(1, topic="former", member=leader, generation=generation)
    machine.wait(RETENTION_MS + 60_000)
    assert (machine.committed(), machine.committed(topic="former")) == (1, None)
    machine.coordinator.leave("g", [LeavingMember(leader)])
    machine.carry_out()
    machine.wait(RETENTION_MS - 60_000)
    assert machine.committed() == 1, "the time counts from when the group became empty"
    machine.wait(120_000)
    assert machine.committed() is None
    assert machine.stored_groups() == []


def test_group_of_another_kind_keeps_all_while_it_has_members() -> None:
    machine = Machine(CONFIG)
    (leader,), generation = machine.stable(1, protocol_type="connect", session_ms=10 * RETENTION_MS)
    machine.commit(1, member=leader, generation=generation)
    machine.wait(2 * RETENTION_MS)
    assert machine.committed() == 1


def test_offset_that_is_committed_while_it_expires_stays() -> None:
    machine = Machine(CONFIG)
    machine.commit(1)
    machine.wait(RETENTION_MS - 1)
    machine.hold = True
    commit = machine.commit(2)
    machine.wait(60_000)
    machine.release()
    assert commit.result == OK
    assert not machine.held
    assert machine.reloaded().committed() == 2


def test_deleting_groups() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1)
    machine.commit(1, member=leader, generation=generation)

    def delete(group_id: str) -> object:
        call = machine.call(f"delete {group_id}")
        machine.coordinator.delete_group(call, group_id)
        machine.carry_out()
        return call.result

    assert delete("g") is ErrorCode.NON_EMPTY_GROUP
    assert delete("nobody") is ErrorCode.GROUP_ID_NOT_FOUND
    machine.coordinator.leave("g", [LeavingMember(leader)])
    machine.carry_out()
    machine.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert delete("g") is ErrorCode.NOT_COORDINATOR
    assert machine.committed() == 1
    machine.fail_with = NONE
    assert delete("g") is NONE
    assert machine.coordinator.describe("g").state is GroupState.DEAD
    assert machine.stored_groups() == []


def test_what_is_committed_while_a_group_is_deleted_stays() -> None:
    machine = Machine()
    machine.commit(1)
    machine.hold = True
    call = machine.call("delete")
    machine.coordinator.delete_group(call, "g")
    machine.carry_out()
    later = machine.commit(2)
    machine.release()
    machine.release()
    assert (call.result, later.result) == (NONE, OK)
    assert machine.committed() == 2
    assert machine.reloaded().committed() == 2


def test_deleting_offsets() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1, protocols={"range": subscription("t")})
    for topic in ("t", "u"):
        machine.commit(1, topic=topic, member=leader, generation=generation)
    call = machine.call("delete offsets")
    machine.coordinator.delete_offsets(call, "g", [("t", 0), ("u", 0), ("never", 0)])
    machine.carry_out()
    assert call.result.partitions == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): NONE,
        ("never", 0): NONE,
    }
    assert (machine.committed(), machine.committed(topic="u")) == (1, None)
    assert machine.reloaded().committed(topic="u") is None


def test_deleting_offsets_of_groups_that_are_not_consumers() -> None:
    machine = Machine()
    machine.stable(1, protocol_type="connect")
    for group, error in [("g", ErrorCode.NON_EMPTY_GROUP), ("nobody", ErrorCode.GROUP_ID_NOT_FOUND)]:
        call = machine.call(f"delete offsets {group}")
        machine.coordinator.delete_offsets(call, group, [("t", 0)])
        machine.carry_out()
        assert call.result.error is error


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


# Positions belong to a topic's id


def test_positions_of_a_topic_made_anew_are_forgotten() -> None:
    machine = Machine()
    machine.commit(7)
    machine.delete_topic("t", anew=True)
    assert machine.committed() is None
    assert machine.stored_groups() == []
    machine.commit(1)
    assert machine.reloaded().committed() == 1


def test_positions_of_a_topic_made_anew_while_no_coordinator_looked_are_forgotten_at_the_load() -> None:
    machine = Machine()
    machine.commit(7)
    machine.commit(8, topic="other")
    machine.topics["t"] = uuid.uuid4()
    successor = machine.reloaded()
    assert (successor.committed(), successor.committed(topic="other")) == (None, 8)
    assert successor.coordinator.fetch_offsets("g", None).offsets.keys() == {("other", 0)}
    (stored,) = successor.stored_groups()
    assert stored.offsets.keys() == {("other", 0)}, "the log forgets it, too"


def test_a_topic_that_is_not_known_need_not_be_deleted() -> None:
    """A coordinator that lags behind keeps what is stored, and hands it out once it has caught up."""
    machine = Machine()
    machine.commit(7)
    topic_id = machine.topics.pop("t")
    successor = machine.reloaded()
    assert successor.committed() == 7
    successor.wait(60_000)
    successor.topics["t"] = topic_id
    assert successor.committed() == 7
    assert successor.reloaded().committed() == 7


def test_a_successor_that_comes_later_voids_positions_that_waited_for_their_topic() -> None:
    machine = Machine(CONFIG)
    machine.commit(7)
    del machine.topics["t"]
    successor = machine.reloaded()
    successor.topics["t"] = uuid.uuid4()
    assert successor.committed() is None
    assert successor.coordinator.fetch_offsets("g", None).offsets == {}
    successor.wait(60_000)
    assert successor.stored_groups() == [], "the next check writes the tombstone"


def test_a_deletion_that_was_seen_is_remembered_for_later_loads() -> None:
    machine = Machine()
    machine.commit(7)
    partition = machine.coordinator.partition_of("g")
    groups = machine.stored_groups()
    machine.coordinator.unload(partition)
    machine.delete_topic("t")
    machine.coordinator.begin_load(partition)
    machine.coordinator.loaded(partition, groups)
    machine.carry_out()
    assert machine.committed() is None
    assert machine.stored_groups() == []


def test_deletions_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "DELETED_TOPICS", 2)
    machine = Machine()
    ids = [uuid.uuid4() for _ in range(3)]
    for topic_id in ids:
        machine.coordinator.forget_topics({"gone": topic_id})
    for topic_id in ids:
        machine.commit(1, topic=str(topic_id), topic_id=topic_id)
    assert [machine.committed(topic=str(topic_id)) for topic_id in ids] == [1, None, None]


def test_a_commit_under_way_while_its_topic_is_deleted() -> None:
    machine = Machine()
    machine.hold = True
    commit = machine.commit(7)
    machine.delete_topic("t", anew=True)
    machine.hold = False
    machine.release()
    assert commit.result == OK
    assert machine.committed() is None
    assert machine.stored_groups() == []


def test_a_commit_to_the_successor_outlives_what_is_done_to_its_predecessor() -> None:
    """The order of the log: a tombstone for the old position never follows the new one."""
    machine = Machine()
    machine.commit(7)
    old = machine.topics["t"]
    machine.hold = True
    machine.topics["t"] = uuid.uuid4()
    machine.commit(1)
    machine.coordinator.forget_topics({"t": old})
    machine.carry_out()
    machine.hold = False
    while machine.held:
        machine.release()
    assert machine.committed() == 1
    machine.coordinator.forget_topics({"t": old})
    assert machine.committed() == 1
    assert machine.reloaded().committed() == 1


def test_a_tombstone_that_could_not_be_written_is_written_later() -> None:
    machine = Machine(CONFIG)
    machine.commit(7)
    machine.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    machine.delete_topic("t", anew=True)
    assert machine.committed() is None
    assert len(machine.stored_groups()) == 1
    machine.fail_with = NONE
    machine.wait(60_000)
    assert machine.stored_groups() == []


def test_a_position_that_names_no_topic_id_belongs_to_the_topic_of_that_name() -> None:
    """As older versions stored them; from the load on it is bound to that topic."""
    machine = Machine()
    machine.commit(7, topic_id=ZERO_UUID)
    machine.commit(8, topic="unknown", topic_id=ZERO_UUID)
    machine.commit(9, topic="u", topic_id=ZERO_UUID, retention_ms=500_000)
    successor = machine.reloaded()
    assert [successor.committed(topic=topic) for topic in ("t", "unknown", "u")] == [7, 8, 9]
    (stored,) = successor.stored_groups()
    assert {where[0]: each.topic_id for where, each in stored.offsets.items()} == {
        "t": machine.topics["t"],
        "unknown": ZERO_UUID,
        "u": ZERO_UUID,  # version 1 of the record, which has the expiry, has no room for it
    }
    assert stored.offsets["u", 0].expire_timestamp >= 0
    written = len(successor.log)
    successor.reloaded()
    assert len(successor.log) == written, "that is done once"
    successor.topics["t"] = uuid.uuid4()
    assert successor.reloaded().committed() is None


def test_positions_that_name_no_topic_id_go_with_the_topic_of_that_name() -> None:
    machine = Machine(CONFIG)
    machine.commit(7, topic_id=ZERO_UUID)
    machine.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    machine.delete_topic("t", anew=True)
    assert machine.committed() is None, "though the tombstone is not written yet"
    machine.fail_with = NONE
    machine.wait(60_000)
    assert machine.stored_groups() == []


def test_void_positions_keep_no_group_alive_and_may_be_deleted() -> None:
    machine = Machine(CONFIG)
    machine.commit(7)
    machine.topics["t"] = uuid.uuid4()
    call = machine.call("delete offsets")
    machine.coordinator.delete_offsets(call, "g", [("t", 0)])
    machine.carry_out()
    assert call.result.partitions == {("t", 0): NONE}
    assert machine.stored_groups() == []


def test_void_positions_of_topics_that_members_consume_go_at_the_next_check() -> None:
    machine = Machine(CONFIG)
    (leader,), generation = machine.stable(1, protocols={"range": subscription("t")}, session_ms=10**8)
    machine.commit(7, member=leader, generation=generation)
    machine.topics["t"] = uuid.uuid4()
    assert machine.committed() is None
    machine.wait(60_000)
    (stored,) = machine.stored_groups()
    assert (stored.offsets, len(stored.members)) == ({}, 1)
