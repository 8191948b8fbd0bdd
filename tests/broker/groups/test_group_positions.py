"""Positions belong to a topic id: none outlives its topic, and none passes to a new topic of that name."""

from __future__ import annotations

import uuid

import pytest

from millstream_broker.groups import offsets as offsets_module
from millstream_broker.groups.records import LoadedGroups
from millstream_broker.runtime.steps import to_the_end
from millstream_harness.group_machine import EXPIRING, Machine, subscription
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

NONE = ErrorCode.NONE
OK = {("t", 0): NONE}


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
    assert successor.coordinator.offsets.fetch("g", None).offsets.keys() == {("other", 0)}
    (stored,) = successor.stored_groups()
    assert stored.offsets.keys() == {("other", 0)}, "the log forgets it, too"


def test_a_topic_that_is_not_known_need_not_be_deleted() -> None:
    """A coordinator that lags behind keeps stored positions and returns them."""
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
    machine = Machine(EXPIRING)
    machine.commit(7)
    del machine.topics["t"]
    successor = machine.reloaded()
    successor.topics["t"] = uuid.uuid4()
    assert successor.committed() is None
    assert successor.coordinator.offsets.fetch("g", None).offsets == {}
    successor.wait(60_000)
    assert successor.stored_groups() == [], "the next check writes the tombstone"


def test_a_deletion_that_was_seen_is_remembered_for_later_loads() -> None:
    machine = Machine()
    machine.commit(7)
    partition = machine.coordinator.state.partition_of("g")
    groups = machine.stored_groups()
    machine.coordinator.unload(partition)
    machine.delete_topic("t")
    machine.coordinator.state.begin_load(partition)
    machine.coordinator.loaded(partition, LoadedGroups(groups))
    machine.carry_out()
    assert machine.committed() is None
    assert machine.stored_groups() == []


def test_what_happened_since_a_partition_was_loaded_outlives_another_load() -> None:
    machine = Machine()
    machine.commit(7)
    groups = machine.stored_groups()
    machine.commit(8)
    machine.coordinator.loaded(machine.coordinator.state.partition_of("g"), LoadedGroups(groups))
    assert machine.committed() == 8


def test_deletions_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "DELETED_TOPICS", 2)
    machine = Machine()
    ids = [uuid.uuid4() for _ in range(3)]
    for topic_id in ids:
        to_the_end(machine.coordinator.offsets.forget_topics({"gone": topic_id}))
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
    """By the order of the log: a tombstone for the old position never follows the new position."""
    machine = Machine()
    machine.commit(7)
    old = machine.topics["t"]
    machine.hold = True
    machine.topics["t"] = uuid.uuid4()
    machine.commit(1)
    to_the_end(machine.coordinator.offsets.forget_topics({"t": old}))
    machine.carry_out()
    machine.hold = False
    while machine.held:
        machine.release()
    assert machine.committed() == 1
    to_the_end(machine.coordinator.offsets.forget_topics({"t": old}))
    assert machine.committed() == 1
    assert machine.reloaded().committed() == 1


def test_a_tombstone_that_could_not_be_written_is_written_later() -> None:
    machine = Machine(EXPIRING)
    machine.commit(7)
    machine.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    machine.delete_topic("t", anew=True)
    assert machine.committed() is None
    assert len(machine.stored_groups()) == 1
    machine.fail_with = NONE
    machine.wait(60_000)
    assert machine.stored_groups() == []


def test_a_position_that_names_no_topic_id_belongs_to_the_topic_of_that_name() -> None:
    """Older versions stored no id; loading binds the position to the current topic."""
    machine = Machine()
    machine.commit(9, topic="u", topic_id=ZERO_UUID, retention_ms=500_000)
    machine.commit(7, topic_id=ZERO_UUID)
    machine.commit(8, topic="unknown", topic_id=ZERO_UUID)
    successor = machine.reloaded()
    assert [successor.committed(topic=topic) for topic in ("t", "unknown", "u")] == [7, 8, 9]
    (stored,) = successor.stored_groups()
    assert {where[0]: each.topic_id for where, each in stored.offsets.items()} == {
        "t": machine.topics["t"],
        "unknown": ZERO_UUID,
        "u": ZERO_UUID,  # records with an expiry are of version 1, which has no field for the id
    }
    assert stored.offsets["u", 0].expire_timestamp >= 0
    written = len(successor.log)
    successor.reloaded()
    assert len(successor.log) == written, "that is done once"
    successor.topics["t"] = uuid.uuid4()
    assert successor.reloaded().committed() is None


def test_a_position_in_a_transaction_gets_no_topic_id_and_those_after_it_do() -> None:
    """Its record would follow that of the transaction, and win."""
    machine = Machine()
    machine.commit(7, topic_id=ZERO_UUID)
    machine.commit(8, partition=1, topic_id=ZERO_UUID)
    machine.commit_in_transaction(5, 70)
    (stored,) = machine.reloaded().stored_groups()
    assert [each.topic_id for each in stored.offsets.values()] == [ZERO_UUID, machine.topics["t"]]


def test_positions_that_name_no_topic_id_go_with_the_topic_of_that_name() -> None:
    machine = Machine(EXPIRING)
    machine.commit(7, topic_id=ZERO_UUID)
    machine.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    machine.delete_topic("t", anew=True)
    assert machine.committed() is None, "though the tombstone is not written yet"
    machine.fail_with = NONE
    machine.wait(60_000)
    assert machine.stored_groups() == []


def test_void_positions_keep_no_group_alive_and_may_be_deleted() -> None:
    machine = Machine(EXPIRING)
    machine.commit(7)
    machine.topics["t"] = uuid.uuid4()
    call = machine.delete_offsets([("t", 0)])
    assert call.result.partitions == {("t", 0): NONE}
    assert machine.stored_groups() == []


def test_void_positions_of_topics_that_members_consume_go_at_the_next_check() -> None:
    machine = Machine(EXPIRING)
    (leader,), generation = machine.stable(1, protocols={"range": subscription("t")}, session_ms=10**8)
    machine.commit(7, member=leader, generation=generation)
    machine.topics["t"] = uuid.uuid4()
    assert machine.committed() is None
    machine.wait(60_000)
    (stored,) = machine.stored_groups()
    assert (stored.offsets, len(stored.members)) == ({}, 1)
