"""Random orders of events against the group coordinator. These promises hold:

- Every call gets exactly one reply.
- A member's assignment comes from the leader of that very generation.
- The generation only rises; each group.instance.id has one member, and the vote counts equal the members' votes.
- Offsets in memory equal those in the log: no commit is lost, comes back, or is visible before it is stored.
- No offset of a deleted topic is returned, whenever the coordinator learns of the deletion.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import GroupConfig, JoinResult, LeavingMember, SyncResult
from millstream_harness.group_machine import Call, Machine
from millstream_kafka.protocol.errors import ErrorCode

INSTANCES = st.sampled_from([None, None, "a", "b"])
PROTOCOLS = st.sampled_from(
    [{"range": b"1"}, {"range": b"2", "sticky": b"1"}, {"sticky": b"2", "range": b"3"}]
)
WRITE_ENDS = st.sampled_from(
    [ErrorCode.NONE] * 4 + [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR]
)


class GroupUnderRandomEvents(RuleBasedStateMachine):
    joins = Bundle("joins")

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.instances: dict[Call, str | None] = {}
        self.synced_as: dict[Call, tuple[str, int]] = {}
        self.handed_in: dict[tuple[str, int], set[bytes]] = {}
        self.generation = 0
        self.offset = 0

    @initialize(delay=st.sampled_from([0, 3_000]), size=st.sampled_from([3, 100]))
    def start(self, delay: int, size: int) -> None:
        self.machine = Machine(
            GroupConfig(
                group_initial_rebalance_delay_ms=delay,
                group_max_size=size,
                offsets_retention_minutes=5,
                offsets_retention_check_interval_ms=60_000,
            )
        )

    def identity(self, call: Call) -> tuple[str, int, str | None]:
        """Member id and generation as that join's caller knows them; a stranger's while the join waits."""
        if call.waits:
            return "nobody", 1, self.instances[call]
        return call.joined.member_id, call.joined.generation, self.instances[call]

    @rule(
        target=joins, instance=INSTANCES, protocols=PROTOCOLS, id_required=st.booleans(), skip=st.booleans()
    )
    def join(self, instance: str | None, protocols: dict[str, bytes], id_required: bool, skip: bool) -> Call:
        call = self.machine.join(instance=instance, protocols=protocols, id_required=id_required, skip=skip)
        self.instances[call] = instance
        return call

    @rule(target=joins, call=consumes(joins), protocols=PROTOCOLS)
    def join_again(self, call: Call, protocols: dict[str, bytes]) -> Call:
        member_id, _, instance = self.identity(call)
        again = self.machine.join(member_id, instance=instance, protocols=protocols)
        self.instances[again] = instance
        return again

    @rule(call=joins)
    def sync(self, call: Call) -> None:
        member_id, generation, instance = self.identity(call)
        assignments: dict[str, bytes] = {}
        if not call.waits and call.joined.members:
            assignments = {
                member.member_id: f"{len(self.machine.calls)} {member.member_id} {generation}".encode()
                for member in call.joined.members
            }
            for assigned, content in assignments.items():
                self.handed_in.setdefault((assigned, generation), set()).add(content)
        sync = self.machine.sync(member_id, generation, assignments, instance=instance)
        self.synced_as[sync] = (instance or member_id, generation)

    @rule(call=joins)
    def heartbeat(self, call: Call) -> None:
        member_id, generation, instance = self.identity(call)
        self.machine.heartbeat(member_id, generation, instance=instance)

    @rule(call=consumes(joins), by_instance=st.booleans())
    def leave(self, call: Call, by_instance: bool) -> None:
        member_id, _, instance = self.identity(call)
        leaving = LeavingMember("" if by_instance and instance else member_id, instance)
        self.machine.coordinator.classic.leave("g", [leaving])
        self.machine.carry_out()

    @rule(call=joins, partition=st.integers(0, 2))
    def commit(self, call: Call, partition: int) -> None:
        member_id, generation, instance = self.identity(call)
        self.offset += 1
        self.machine.commit(
            self.offset, partition=partition, member=member_id, generation=generation, instance=instance
        )

    @rule(partition=st.integers(0, 2))
    def commit_without_membership(self, partition: int) -> None:
        self.offset += 1
        self.machine.commit(self.offset, partition=partition)

    @rule()
    def delete_group(self) -> None:
        self.machine.delete()

    @rule(partition=st.integers(0, 2))
    def delete_offset(self, partition: int) -> None:
        self.machine.delete_offsets([("t", partition)])

    @rule(is_told=st.booleans())
    def topic_made_anew(self, is_told: bool) -> None:
        """The coordinator learns of the deletion, or finds the new topic."""
        if is_told:
            self.machine.delete_topic("t", anew=True)
        else:
            self.machine.make_anew("t")

    @rule(milliseconds=st.sampled_from([10, 2_000, 6_000, 31_000, 400_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.machine.wait(milliseconds)

    @rule(hold=st.booleans())
    def stores_take_time(self, hold: bool) -> None:
        self.machine.hold = hold
        self.store_everything()

    @rule(error=WRITE_ENDS)
    def store_ends(self, error: ErrorCode) -> None:
        if self.machine.held:
            self.machine.release(error)

    @rule(error=st.sampled_from([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]))
    def store_is_late(self, error: ErrorCode) -> None:
        if self.machine.held:
            self.machine.time_out(error)

    @rule()
    def late_stores_are_committed(self) -> None:
        self.machine.commit_late()

    def store_everything(self) -> None:
        while self.machine.held:
            self.machine.release()
        self.machine.commit_late()

    @rule(are_late=st.booleans())
    def coordinator_restarts(self, are_late: bool) -> None:
        """All callers lose their connections; the new coordinator knows only what is in the log."""
        while self.machine.held and are_late:
            self.machine.time_out()
        self.store_everything()
        self.machine = self.machine.reloaded()
        self.generation = 0

    @invariant()
    def one_reply_at_most(self) -> None:
        for call in self.machine.calls:
            assert len(call.replies) <= 1, f"{call.name}: {call.replies}"

    @invariant()
    def assignments_are_the_leaders(self) -> None:
        for call, (_, generation) in list(self.synced_as.items()):
            if call.replies:
                del self.synced_as[call]
                result = call.replies[0]
                assert isinstance(result, SyncResult)
                assert (
                    result.error or not result.assignment or self.was_handed_in(result.assignment, generation)
                )

    def was_handed_in(self, assignment: bytes, generation: int) -> bool:
        return any(assignment in contents for (_, of), contents in self.handed_in.items() if of == generation)

    @invariant()
    def group_is_consistent(self) -> None:
        group = self.machine.coordinator.groups.get("g")
        if group is None:
            self.generation = 0
            return
        assert group.generation >= self.generation
        self.generation = group.generation
        static = {member.instance_id: key for key, member in group.members.items() if member.instance_id}
        assert group.static == static
        assert len(static) == sum(1 for member in group.members.values() if member.instance_id)
        votes: Counter[str] = Counter()
        for key, member in group.members.items():
            assert member.member_id == key
            votes.update(name for name, _ in member.protocols)
        assert group.votes == votes
        assert (group.leader in group.members) == bool(group.members)
        assert group.state is not GroupState.EMPTY or not group.members
        assert group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE) or group.members

    @invariant()
    def offsets_are_what_the_log_says(self) -> None:
        group = self.machine.coordinator.groups.get("g")
        memory = {} if group is None else {where: each.offset for where, each in group.offsets.items()}
        stored = {
            where: each.offset for one in self.machine.stored_groups() for where, each in one.offsets.items()
        }
        assert memory == stored

    @invariant()
    def offsets_are_of_the_present_topic(self) -> None:
        found = self.machine.coordinator.offsets.fetch("g", None).offsets
        assert all(each is not None and each.topic_id == self.machine.topics["t"] for each in found.values())

    def teardown(self) -> None:
        """Once all writes and timers have ended, no call waits."""
        self.store_everything()
        self.machine.hold = False
        self.machine.wait(400_000)
        for call in self.machine.calls:
            assert len(call.replies) == 1, f"{call.name}: {call.replies}"
            reply: Any = call.replies[0]
            if isinstance(reply, JoinResult) and not reply.error:
                assert reply.generation > 0
                assert reply.protocol


TestGroupUnderRandomEvents = GroupUnderRandomEvents.TestCase
TestGroupUnderRandomEvents.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
