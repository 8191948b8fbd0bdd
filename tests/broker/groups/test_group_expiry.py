"""Unused and deleted offsets and groups."""

from __future__ import annotations

import pytest

from millstream_broker.coordinator.effects import StoreRecords
from millstream_broker.groups.group import CommittedOffset, Group, GroupState
from millstream_broker.groups.messages import DeleteOffsetsResult
from millstream_broker.groups.records import group_record, offset_record
from millstream_harness.group_machine import EXPIRING, RETENTION_MS, START, Machine, subscription
from millstream_kafka import group_mark
from millstream_kafka.protocol.errors import ErrorCode

NONE = ErrorCode.NONE
OK = {("t", 0): NONE}


def test_simple_group_forgets_each_offset_when_its_time_is_over() -> None:
    machine = Machine(EXPIRING)
    machine.commit(1, partition=0)
    machine.wait(RETENTION_MS // 2)
    machine.commit(2, partition=1)
    machine.wait(RETENTION_MS // 2)
    assert (machine.committed(partition=0), machine.committed(partition=1)) == (None, 2)
    machine.wait(RETENTION_MS // 2)
    assert machine.coordinator.list_groups() == (NONE, [])
    assert machine.stored_groups() == []


def test_retention_given_with_the_commit() -> None:
    machine = Machine(EXPIRING)
    machine.commit(1, partition=0, retention_ms=60_000)
    machine.commit(1, partition=1, retention_ms=2 * RETENTION_MS)
    machine = machine.reloaded()
    machine.wait(RETENTION_MS + 60_000)
    assert (machine.committed(partition=0), machine.committed(partition=1)) == (None, 1)


def test_retention_of_its_own_is_over_at_its_very_time() -> None:
    machine = Machine(EXPIRING)
    machine.commit(1, partition=0, retention_ms=0)
    machine.commit(1, partition=1, retention_ms=60_000)
    machine.commit(1, partition=2, retention_ms=60_001)
    machine.wait(59_999)
    assert machine.committed(partition=0) == 1, "there was no check so far"
    machine.wait(1)
    assert [machine.committed(partition=index) for index in range(3)] == [None, None, 1]


def test_group_of_the_empty_name_expires_as_others_do() -> None:
    machine = Machine(EXPIRING)
    machine.commit(1, group="")
    machine.wait(RETENTION_MS)
    assert machine.stored_groups() == []


@pytest.mark.parametrize(
    ("empty_since", "lasts_ms"),
    [
        pytest.param(-1, RETENTION_MS, id="not known: since the commit"),
        pytest.param(0, 60_000, id="the first millisecond of 1970"),
        pytest.param(START - 60_000, RETENTION_MS - 60_000, id="a minute before the commit"),
    ],
)
def test_offsets_of_an_empty_group_expire_by_the_time_since_it_is_empty(
    empty_since: int, lasts_ms: int
) -> None:
    machine = Machine(EXPIRING)
    group = Group("g", GroupState.EMPTY, empty_since, 3, "consumer")
    records = [group_record(group), offset_record("g", "t", 0, CommittedOffset(1, -1, "", START))]
    machine.log.append(StoreRecords(1, 0, records))
    successor = machine.reloaded()
    successor.wait(lasts_ms - 1)
    assert successor.committed() == 1
    successor.wait(1)
    assert successor.committed() is None


def test_group_whose_member_is_about_to_join_stays_when_its_offsets_expire() -> None:
    machine = Machine(EXPIRING)
    machine.commit(1)
    machine.wait(RETENTION_MS - 1)
    pending = machine.join(id_required=True).joined.member_id
    machine.wait(1)
    assert machine.committed() is None
    assert machine.join(pending).joined.error is NONE


def test_group_with_members_keeps_what_it_consumes() -> None:
    machine = Machine(EXPIRING)
    options = {"protocols": {"range": subscription("t")}, "session_ms": 10 * RETENTION_MS}
    (leader,), generation = machine.stable(1, **options)
    machine.commit(1, member=leader, generation=generation)
    machine.commit(1, topic="former", member=leader, generation=generation)
    machine.wait(RETENTION_MS + 60_000)
    assert (machine.committed(), machine.committed(topic="former")) == (1, None)
    machine.leave(leader)
    machine.wait(RETENTION_MS - 60_000)
    assert machine.committed() == 1, "the time counts from when the group became empty"
    machine.wait(120_000)
    assert machine.committed() is None
    assert machine.stored_groups() == []


def mark(machine: Machine, *, group: str = "g", metadata: str = f"{group_mark.PREFIX}resets") -> None:
    topic, partition = group_mark.PARTITION
    machine.commit(1, group=group, topic=topic, partition=partition, metadata=metadata)


def has_mark(machine: Machine) -> bool:
    topic, partition = group_mark.PARTITION
    return machine.committed(topic=topic, partition=partition) is not None


def test_mark_lasts_while_the_group_has_members() -> None:
    machine = Machine(EXPIRING)
    mark(machine)
    options = {"protocols": {"range": subscription("t")}, "session_ms": 10 * RETENTION_MS}
    (leader,), generation = machine.stable(1, **options)
    machine.wait(2 * RETENTION_MS)
    assert has_mark(machine), "the group has no position"
    machine.commit(1, member=leader, generation=generation)
    machine.wait(2 * RETENTION_MS)
    assert has_mark(machine.reloaded())
    machine.leave(leader)
    machine.wait(RETENTION_MS)
    assert machine.stored_groups() == []


def test_mark_lasts_as_long_as_the_last_position() -> None:
    machine = Machine(EXPIRING)
    mark(machine)
    machine.commit(1)
    machine.wait(RETENTION_MS // 2)
    machine.commit(1, partition=1)
    machine.wait(RETENTION_MS // 2)
    assert (machine.committed(), has_mark(machine)) == (None, True)
    machine.wait(RETENTION_MS // 2)
    assert machine.stored_groups() == []


def test_position_of_a_client_in_the_same_partition_expires() -> None:
    machine = Machine(EXPIRING)
    mark(machine, metadata="a client's own")
    machine.wait(RETENTION_MS // 2)
    machine.commit(1)
    machine.wait(RETENTION_MS // 2)
    assert (machine.committed(), has_mark(machine)) == (1, False)


def test_group_of_another_kind_keeps_all_while_it_has_members() -> None:
    machine = Machine(EXPIRING)
    (leader,), generation = machine.stable(1, protocol_type="connect", session_ms=10 * RETENTION_MS)
    machine.commit(1, member=leader, generation=generation)
    machine.wait(2 * RETENTION_MS)
    assert machine.committed() == 1


def test_offset_that_is_committed_while_it_expires_stays() -> None:
    machine = Machine(EXPIRING)
    machine.commit(1)
    machine.wait(RETENTION_MS - 1)
    machine.hold = True
    commit = machine.commit(2)
    machine.wait(60_000)
    machine.release()
    assert commit.result == OK
    assert not machine.held
    assert machine.reloaded().committed() == 2


def test_second_commit_under_way_keeps_the_group_when_the_first_is_stored() -> None:
    machine = Machine(EXPIRING)
    machine.hold = True
    machine.commit(1)
    later = machine.commit(2)
    machine.release()
    machine.hold = False
    machine.wait(RETENTION_MS)
    assert machine.committed() == 1, "its successor is on the way"
    machine.release()
    assert later.result == OK
    assert machine.committed() == machine.reloaded().committed() == 2


def test_group_whose_first_commit_is_under_way_is_not_deleted() -> None:
    machine = Machine(EXPIRING)
    machine.commit(3)
    machine.delete_offsets([("t", 0)])
    machine.hold = True
    machine.commit(4)
    machine.wait(3 * RETENTION_MS)
    assert [len(store.records) for store in machine.held if isinstance(store, StoreRecords)] == [1]
    machine.release()
    assert machine.committed() == 4


def test_deleting_groups() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1)
    machine.commit(1, member=leader, generation=generation)
    assert machine.delete().result is ErrorCode.NON_EMPTY_GROUP
    assert machine.delete("nobody").result is ErrorCode.GROUP_ID_NOT_FOUND
    machine.leave(leader)
    machine.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert machine.delete().result is ErrorCode.NOT_COORDINATOR
    assert machine.committed() == 1
    machine.fail_with = NONE
    assert machine.delete().result is NONE
    assert machine.coordinator.describe("g").state is GroupState.DEAD
    assert machine.stored_groups() == []


def test_what_is_committed_while_a_group_is_deleted_stays() -> None:
    machine = Machine()
    machine.commit(1)
    machine.hold = True
    call = machine.delete()
    later = machine.commit(2)
    machine.release()
    machine.release()
    assert (call.result, later.result) == (NONE, OK)
    assert machine.committed() == 2
    assert machine.reloaded().committed() == 2


def test_group_that_is_joined_while_it_is_deleted_stays() -> None:
    machine = Machine()
    machine.commit(1)
    machine.hold = True
    deletion = machine.delete()
    joined = machine.join().joined
    machine.release()
    assert deletion.result is NONE
    assert machine.committed() is None
    assert machine.heartbeat(joined.member_id, joined.generation) is NONE


def test_group_that_somebody_is_about_to_join_while_it_is_deleted_stays() -> None:
    machine = Machine()
    machine.commit(1)
    machine.hold = True
    machine.delete()
    pending = machine.join(id_required=True).joined.member_id
    machine.release()
    assert machine.join(pending).joined.error is NONE


def test_deletion_that_is_stored_while_a_commit_is_under_way_leaves_the_group_for_it() -> None:
    machine = Machine()
    machine.commit(1)
    machine.hold = True
    machine.delete()
    later = machine.commit(2)
    machine.release()
    assert machine.committed() is None
    assert machine.coordinator.describe("g").state is GroupState.EMPTY
    machine.release()
    assert later.result == OK
    assert machine.committed() == 2


def test_deleting_offsets_deletes_also_what_is_being_committed() -> None:
    machine = Machine()
    machine.hold = True
    commit = machine.commit(1)
    deletion = machine.delete_offsets([("t", 0)])
    machine.release()
    machine.release()
    assert commit.result == deletion.result.partitions == OK
    assert machine.committed() is None
    assert machine.reloaded().committed() is None


def test_deleting_offsets_whose_commit_fails_deletes_nothing_else() -> None:
    machine = Machine()
    machine.hold = True
    machine.commit(3)
    deletion = machine.delete_offsets([("t", 0)])
    machine.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    machine.release()
    assert deletion.result == DeleteOffsetsResult(ErrorCode.NONE, {("t", 0): ErrorCode.NONE})
    assert machine.committed() is None


def test_deleting_offsets_that_are_not_there_writes_nothing() -> None:
    machine = Machine()
    machine.commit(1)
    written = len(machine.log)
    assert machine.delete_offsets([("never", 0)]).result.partitions == {("never", 0): NONE}
    assert len(machine.log) == written


def test_deletion_of_offsets_that_cannot_be_stored_says_so_and_deletes_nothing() -> None:
    machine = Machine()
    machine.commit(1)
    machine.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    deletion = machine.delete_offsets([("t", 0)])
    assert deletion.result.partitions == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert machine.committed() == 1


def test_deleting_offsets() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1, protocols={"range": subscription("t")})
    for topic in ("t", "u"):
        machine.commit(1, topic=topic, member=leader, generation=generation)
    call = machine.delete_offsets([("t", 0), ("u", 0), ("never", 0)])
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
        assert machine.delete_offsets([("t", 0)], group=group).result.error is error
