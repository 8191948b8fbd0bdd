"""Offsets that are committed in transactions: they count when the transaction is committed, in the order of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_harness.group_machine import EXPIRING, RETENTION_MS, Machine
from millstream_kafka.protocol.errors import ErrorCode

NONE = ErrorCode.NONE
T0 = ("t", 0)
OK = {T0: NONE}


def test_offset_counts_when_its_transaction_is_committed() -> None:
    machine = Machine()
    assert machine.commit_in_transaction(5, 7).result == OK
    assert machine.committed() is None
    assert machine.reloaded().committed() is None
    assert machine.end_transaction(5, committed=True).result is NONE
    assert machine.committed() == 7
    assert machine.reloaded().committed() == 7


def test_offset_of_an_aborted_transaction_is_dropped() -> None:
    machine = Machine()
    machine.commit(3)
    machine.commit_in_transaction(5, 7)
    assert machine.end_transaction(5, committed=False).result is NONE
    assert machine.committed() == 3
    machine.end_transaction(5, committed=True)  # of the next transaction, which has no offsets
    assert machine.committed() == 3
    assert machine.reloaded().committed() == 3


@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves"])
def test_of_a_plain_and_a_transactional_commit_the_one_later_in_the_log_counts(moves: bool) -> None:
    for plain_first, winner in ((False, 3), (True, 70)):
        machine = Machine()
        if plain_first:
            machine.commit(3)
        machine.commit_in_transaction(5, 70)
        if not plain_first:
            machine.commit(3)
        if moves:
            machine = machine.reloaded()
        machine.end_transaction(5, committed=True)
        assert machine.committed() == winner
        assert machine.reloaded().committed() == winner


def test_an_open_transaction_survives_a_move_of_the_coordinator() -> None:
    machine = Machine()
    machine.commit_in_transaction(5, 7)
    machine.commit_in_transaction(6, 8)
    moved = machine.reloaded()
    moved.end_transaction(6, committed=False)
    moved.end_transaction(5, committed=True)
    assert moved.committed() == 7


def test_offsets_that_a_transaction_may_change_are_unstable() -> None:
    machine = Machine()
    machine.commit(3, partition=1)
    machine.commit_in_transaction(5, 7)
    fetch = machine.coordinator.offsets.fetch
    wanted = [T0, ("t", 1)]
    assert fetch("g", wanted, stable=True).unstable == {T0}
    assert not fetch("g", wanted).unstable
    assert not fetch("g", None, stable=True).unstable  # it has no position there yet
    machine.commit(2)
    assert fetch("g", None, stable=True).unstable == {T0}
    machine.end_transaction(5, committed=True)
    assert not fetch("g", wanted, stable=True).unstable


def test_a_transaction_of_one_producer_leaves_the_others_alone() -> None:
    machine = Machine()
    machine.commit_in_transaction(5, 7)
    machine.commit_in_transaction(6, 8, partition=1)
    machine.end_transaction(5, committed=True)
    assert machine.coordinator.offsets.fetch("g", [("t", 1)], stable=True).unstable == {("t", 1)}


def test_a_member_of_another_generation_is_fenced() -> None:
    machine = Machine()
    leader = machine.join().joined
    member = machine.join(leader.member_id).joined.member_id
    machine.sync(member, 1, {member: b"all"})
    generation = machine.coordinator.groups["g"].generation
    refused = {T0: ErrorCode.ILLEGAL_GENERATION}
    assert machine.commit_in_transaction(5, 7, member=member, generation=generation + 1).result == refused
    unknown = {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert machine.commit_in_transaction(5, 7, member="else", generation=generation).result == unknown
    assert machine.commit_in_transaction(5, 7, member=member, generation=generation).result == OK
    assert machine.commit_in_transaction(6, 8).result == OK  # a producer that names no member
    assert machine.commit_in_transaction(5, 7, group="new", member="m", generation=1).result == refused


@pytest.mark.parametrize("group", ["missing", "empty", "left"])
def test_a_group_without_members_takes_positions_without_a_generation(group: str) -> None:
    machine = Machine()
    member = "former"
    if group == "empty":
        machine.commit(3)
    elif group == "left":
        member = machine.join().joined.member_id
        machine.leave(member)
    for names in ({}, {"member": member}, {"instance": "i"}, {"member": member, "instance": "i"}):
        assert machine.commit_in_transaction(5, 7, **names).result == OK  # type: ignore[arg-type]


@pytest.mark.parametrize("generation", [0, 1])
def test_a_missing_group_has_no_generation(generation: int) -> None:
    refused = {T0: ErrorCode.ILLEGAL_GENERATION}
    assert Machine().commit_in_transaction(5, 7, generation=generation).result == refused


def test_a_group_with_members_takes_positions_of_its_members_and_of_producers_that_name_none() -> None:
    machine = Machine()
    member = machine.join().joined.member_id
    unknown, illegal = {T0: ErrorCode.UNKNOWN_MEMBER_ID}, {T0: ErrorCode.ILLEGAL_GENERATION}
    assert machine.commit_in_transaction(5, 7).result == OK
    assert machine.commit_in_transaction(5, 7, member="else").result == unknown
    assert machine.commit_in_transaction(5, 7, instance="i").result == unknown
    assert machine.commit_in_transaction(5, 7, generation=0).result == unknown
    assert machine.commit_in_transaction(5, 7, member=member).result == illegal


def test_a_marker_ends_the_positions_of_its_partition_only() -> None:
    machine = Machine()
    partition_of = machine.coordinator.state.partition_of
    there = [name for name in map(str, range(100)) if partition_of(name) != partition_of("g")]
    for group_id in (*there, "g"):
        machine.commit_in_transaction(5, 7, group=group_id)
    machine.end_transaction(5, committed=True)
    assert machine.committed() == 7
    assert {machine.committed(group=group_id) for group_id in there} == {None}
    for group_id in there:
        machine.end_transaction(5, committed=True, group_id=group_id)
    assert {machine.committed(group=group_id) for group_id in there} == {7}
    assert not machine.coordinator.transactional._groups_of, "a producer leaves nothing behind"


def test_a_deleted_position_leaves_those_of_transactions_elsewhere() -> None:
    machine = Machine()
    machine.commit(3)
    machine.commit_in_transaction(5, 7, partition=1)
    assert machine.delete_offsets([T0]).result.partitions == OK
    machine.end_transaction(5, committed=True)
    assert machine.committed() is None
    assert machine.committed(partition=1) == 7
    assert machine.coordinator.offsets.partitions_of("g") == [("t", 1)]


def test_a_write_that_fails_commits_nothing() -> None:
    machine = Machine()
    machine.hold = True
    commit = machine.commit_in_transaction(5, 7)
    machine.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert commit.result == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    machine.hold = False
    machine.end_transaction(5, committed=True)
    assert machine.committed() is None


def test_a_marker_that_fails_ends_nothing() -> None:
    machine = Machine()
    machine.commit_in_transaction(5, 7)
    machine.hold = True
    marker = machine.end_transaction(5, committed=True)
    machine.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert marker.result is ErrorCode.NOT_ENOUGH_REPLICAS
    assert machine.committed() is None
    machine.hold = False
    assert machine.end_transaction(5, committed=True).result is NONE
    assert machine.committed() == 7


def test_a_marker_for_a_partition_of_another_coordinator_is_refused() -> None:
    machine = Machine()
    machine.coordinator.unload(machine.coordinator.state.partition_of("g"))
    assert machine.end_transaction(5, committed=True).result is ErrorCode.NOT_COORDINATOR


def test_positions_with_an_open_transaction_do_not_expire() -> None:
    machine = Machine(EXPIRING)
    machine.commit(3)
    machine.commit_in_transaction(5, 7)
    machine.wait(3 * RETENTION_MS)
    assert machine.committed() == 3
    machine.end_transaction(5, committed=False)
    machine.wait(RETENTION_MS)
    assert not machine.coordinator.groups


def test_a_deleted_group_gets_nothing_from_an_open_transaction() -> None:
    machine = Machine()
    machine.commit(3)
    machine.commit_in_transaction(5, 7)
    deletion = machine.call("delete")
    machine.coordinator.delete_group(deletion, "g")
    machine.carry_out()
    assert deletion.result is NONE
    for each in (machine.reloaded(), machine):
        each.end_transaction(5, committed=True)
        assert each.committed() is None


@dataclass
class Plain:
    """The log as a list; the position that a reader of the whole log finds."""

    log: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def committed(self) -> int | None:
        outcomes: list[tuple[int, int]] = []
        for at, (kind, producer_id, offset) in enumerate(self.log):
            if kind == "plain":
                outcomes.append((at, offset))
            if kind == "transactional":
                ends = [
                    each[0]
                    for each in self.log[at:]
                    if each[1] == producer_id and each[0] in ("commit", "abort")
                ]
                if ends and ends[0] == "commit":
                    outcomes.append((at, offset))
        return max(outcomes)[1] if outcomes else None


EVENTS = st.tuples(
    st.sampled_from(["plain", "transactional", "transactional", "commit", "abort", "move"]),
    st.integers(1, 2),
    st.integers(0, 99),
)


@given(st.lists(EVENTS, max_size=15))
def test_any_order_of_commits_markers_and_moves_follows_the_log(events: list[tuple[str, int, int]]) -> None:
    machine, plain = Machine(), Plain()
    for kind, producer_id, offset in events:
        match kind:
            case "plain":
                machine.commit(offset)
            case "transactional":
                machine.commit_in_transaction(producer_id, offset)
            case "move":
                machine = machine.reloaded()
                continue
            case _:
                machine.end_transaction(producer_id, committed=kind == "commit")
        plain.log.append((kind, producer_id if kind != "plain" else 0, offset))
        assert machine.committed() == plain.committed
    assert machine.reloaded().committed() == plain.committed


@pytest.mark.parametrize("is_late", [False, True])
def test_offsets_are_unstable_while_they_are_written(is_late: bool) -> None:
    """A member that gets the partition now must not read on from the position before them."""
    machine = Machine()
    machine.commit(3)
    machine.hold = True
    machine.commit_in_transaction(5, 7)
    fetch = machine.coordinator.offsets.fetch
    assert fetch("g", [T0], stable=True).unstable == {T0}
    assert not fetch("g", [T0]).unstable
    if is_late:
        machine.time_out()
        assert fetch("g", [T0], stable=True).unstable == {T0}
        machine.commit_late()
    else:
        machine.release()
    machine.hold = False
    assert fetch("g", [T0], stable=True).unstable == {T0}
    machine.end_transaction(5, committed=True)
    fetched = fetch("g", [T0], stable=True)
    assert (fetched.unstable, machine.committed()) == (set(), 7)


def test_offsets_that_were_not_written_are_stable() -> None:
    machine = Machine()
    machine.commit(3)
    machine.hold = True
    first, second = machine.commit_in_transaction(5, 7), machine.commit_in_transaction(6, 8)
    fetch = machine.coordinator.offsets.fetch
    machine.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert fetch("g", [T0], stable=True).unstable == {T0}, "there is another one"
    machine.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert not fetch("g", [T0], stable=True).unstable
    assert first.result == second.result == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
