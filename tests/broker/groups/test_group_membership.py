"""Membership as Kafka's clients expect it, event by event, on the test's clock."""

from __future__ import annotations

import pytest

from millstream_broker.coordinator.effects import Reply
from millstream_broker.groups.classic import LONGEST_NAME
from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import GroupConfig, Join, JoinResult, LeavingMember
from millstream_harness.group_machine import Machine
from millstream_kafka.protocol.compiler import MAX_STRING
from millstream_kafka.protocol.errors import ErrorCode

NONE = ErrorCode.NONE


def test_first_member_waits_for_the_initial_delay_and_each_newcomer_extends_it() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = machine.join(rebalance_ms=7_000)
    machine.wait(2_000)
    second = machine.join(rebalance_ms=7_000)
    machine.wait(2_000)
    assert first.waits, "the second member put it off until 6 s"
    third = machine.join(rebalance_ms=7_000)
    machine.wait(2_500)
    assert first.waits, "the third put it off again, until the rebalance timeout at 7 s"
    machine.wait(500)
    joined = [call.joined for call in (first, second, third)]
    assert [result.generation for result in joined] == [1, 1, 1]
    assert {result.leader for result in joined} == {joined[0].member_id}
    assert len(joined[0].members) == 3
    assert not joined[1].members, "only the leader learns of the others"


def test_mirror_workers_do_not_wait_for_others() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = machine.join(protocol_type="mirror")
    assert first.joined.generation == 1


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = machine.join(rebalance_ms=3_000)
    machine.wait(1_000)
    second = machine.join(rebalance_ms=3_000)
    machine.wait(2_000)
    assert first.joined.generation == second.joined.generation == 1


def test_group_that_became_empty_gathers_its_next_members_as_a_new_one_does() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    first = machine.join()
    machine.wait(3_000)
    machine.coordinator.classic.leave("g", [LeavingMember(first.joined.member_id)])
    assert machine.group().state is GroupState.EMPTY
    again = machine.join()
    machine.wait(2_000)
    second = machine.join()
    machine.wait(2_000)
    assert again.waits, "the second member put it off until 6 s"
    machine.wait(2_000)
    assert again.joined.generation == second.joined.generation == 3


def test_group_that_has_become_too_large_rebalances_when_it_is_loaded() -> None:
    machine = Machine()
    (leader, _, late), _ = machine.stable(3)
    machine.config = GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2)
    fresh = machine.reloaded()
    assert fresh.group().state is GroupState.PREPARING_REBALANCE
    calls = [fresh.join(member_id) for member_id in list(fresh.group().members)]
    assert [call.joined.error for call in calls] == [NONE, NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert calls[2].joined.member_id == ""
    assert calls[0].joined.member_id == leader
    assert late not in fresh.group().members


def test_group_that_is_as_large_as_it_may_be_stays_as_it_is_when_it_is_loaded() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    machine.stable(2)
    assert machine.reloaded().group().state is GroupState.STABLE


def test_member_id_is_required_from_dynamic_members_only() -> None:
    machine = Machine()
    first = machine.join(id_required=True).joined
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("c-")
    assert machine.join(first.member_id, id_required=True).joined.error is NONE
    static = machine.join(group="other", instance="i", id_required=True).joined
    assert static.error is NONE
    assert static.member_id.startswith("i-")


@pytest.mark.parametrize("is_static", [False, True])
def test_a_member_id_is_never_too_long_to_be_sent(is_static: bool) -> None:
    """It is made of the client's own name, of up to 32,767 bytes, and an id."""
    machine = Machine()

    def join(name: str) -> JoinResult:
        instance = name if is_static else None
        event = Join("g", "", name, "/h", 10_000, 10_000, "consumer", (("range", b""),), instance_id=instance)
        machine.coordinator.classic.join("caller", event)
        (result,) = (
            each.result for each in machine.coordinator.state.take_effects() if isinstance(each, Reply)
        )
        assert isinstance(result, JoinResult)
        return result

    for name in ("x" * (LONGEST_NAME + 1), "é" * (LONGEST_NAME // 2 + 1)):
        assert join(name).error is ErrorCode.INVALID_REQUEST
        assert not machine.coordinator.groups
    assert len(join("x" * LONGEST_NAME).member_id) < MAX_STRING


def test_member_id_that_is_not_used_expires_and_then_no_longer_holds_the_others_up() -> None:
    machine = Machine()
    (leader,), _ = machine.stable(1)
    pending = machine.join(id_required=True, session_ms=6_000).joined.member_id
    machine.join(leader)
    again = machine.join(leader)
    assert again.waits, "the rebalance waits for the member that has its id and not yet joined"
    machine.wait(5_999)
    assert again.waits, "its session is not over"
    machine.wait(1)
    assert again.joined.error is NONE
    assert machine.join(pending).joined.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_member_that_leaves_no_longer_holds_the_others_up() -> None:
    machine = Machine()
    (leader,), _ = machine.stable(1)
    pending = machine.join(id_required=True).joined.member_id
    again = machine.join(leader)
    assert again.waits
    machine.leave(pending)
    assert again.joined.error is NONE


def test_assignments_go_to_each_member_once_they_are_stored() -> None:
    machine = Machine()
    leader = machine.join(client="a").joined.member_id
    follower = machine.join(client="b")
    machine.join(leader)
    generation = follower.joined.generation
    waiting = machine.sync(follower.joined.member_id, generation)
    machine.hold = True
    leading = machine.sync(leader, generation, {leader: b"L", follower.joined.member_id: b"F"})
    assert waiting.waits
    assert leading.waits
    machine.release()
    assert (leading.synced.assignment, waiting.synced.assignment) == (b"L", b"F")
    assert machine.group().state is GroupState.STABLE


def test_assignment_that_cannot_be_stored_sends_everybody_back() -> None:
    machine = Machine()
    leader = machine.join().joined
    machine.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    sync = machine.sync(leader.member_id, leader.generation, {leader.member_id: b"L"})
    assert sync.synced.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert sync.synced.assignment == b""
    assert machine.group().state is GroupState.PREPARING_REBALANCE
    assert machine.heartbeat(leader.member_id, leader.generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_assignments_stored_too_late_for_their_generation_are_not_handed_out() -> None:
    machine = Machine()
    leader = machine.join(client="a").joined.member_id
    machine.hold = True
    sync = machine.sync(leader, 1, {leader: b"late"})
    newcomer = machine.join(client="b")
    assert sync.synced.error is ErrorCode.REBALANCE_IN_PROGRESS
    store = machine.held.pop()
    machine.coordinator.state.stored([store.write], NONE)
    assert machine.group().state is GroupState.PREPARING_REBALANCE
    machine.join(leader)
    assert newcomer.joined.generation == 2
    assert machine.group().members[leader].assignment == b""


def test_assignments_stored_in_the_next_generation_are_not_handed_out() -> None:
    machine = Machine()
    leader = machine.join(client="a").joined.member_id
    machine.hold = True
    machine.sync(leader, 1, {leader: b"late"})
    newcomer = machine.join(client="b")
    machine.join(leader)
    waiting = machine.sync(newcomer.joined.member_id, 2)
    machine.release()
    assert waiting.waits
    assert machine.group().state is GroupState.COMPLETING_REBALANCE
    machine.hold = False
    assert machine.sync(leader, 2, {leader: b"L", newcomer.joined.member_id: b"F"}).synced.assignment == b"L"
    assert waiting.synced.assignment == b"F"


def test_protocol_is_what_most_vote_for_among_those_all_speak() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=100))
    calls = [
        machine.join(protocols={"sticky": b"", "range": b"r1"}),
        machine.join(protocols={"range": b"r2", "sticky": b""}),
        machine.join(protocols={"cooperative": b"", "range": b"r3", "sticky": b""}),
    ]
    refused = machine.join(protocols={"cooperative": b""})
    assert refused.joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = machine.join(protocol_type="connect")
    assert other_type.joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    machine.wait(300)
    assert [call.joined.protocol for call in calls] == ["range"] * 3
    assert [member.metadata for member in calls[0].joined.members] == [b"r1", b"r2", b"r3"]


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"range": b""}), ("consumer", {})])
def test_first_member_must_name_type_and_protocols(protocol_type: str, protocols: dict[str, bytes]) -> None:
    machine = Machine()
    call = machine.call("join")
    from millstream_broker.groups.messages import Join

    offered = tuple(protocols.items())
    machine.coordinator.classic.join(call, Join("g", "", "c", "/h", 10_000, 30_000, protocol_type, offered))
    machine.carry_out()
    assert call.joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_any_protocol_type_goes() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1, protocol_type="connect", protocols={"sessioned": b"\x00\x01"})
    described = machine.coordinator.describe("g")
    assert (described.protocol_type, described.protocol) == ("connect", "sessioned")
    assert machine.heartbeat(leader, generation) is NONE


@pytest.mark.parametrize(
    ("session_ms", "error"),
    [
        (5_999, ErrorCode.INVALID_SESSION_TIMEOUT),
        (6_000, NONE),
        (1_800_000, NONE),
        (1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_session_timeout_is_bounded(session_ms: int, error: ErrorCode) -> None:
    assert Machine().join(session_ms=session_ms).joined.error is error


def test_member_that_falls_silent_is_dropped_and_the_others_rebalance() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2)
    for _ in range(4):
        machine.wait(4_000)
        assert machine.heartbeat(leader, generation) in (NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    assert machine.heartbeat(leader, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.heartbeat(follower, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    again = machine.join(leader)
    assert again.joined.generation == generation + 1
    assert [member.member_id for member in again.joined.members] == [leader]


def test_member_that_waits_for_an_answer_is_alive_though_it_sends_no_heartbeats() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2, session_ms=10_000)
    rejoined = machine.join(follower, protocols={"range": b"changed"})
    for _ in range(4):
        machine.wait(5_000)
        assert machine.heartbeat(leader, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoined.waits
    machine.join(leader)
    assert rejoined.joined.error is NONE
    waiting = machine.sync(follower, generation + 1)
    for _ in range(4):
        machine.wait(5_000)
        assert machine.heartbeat(leader, generation + 1) is NONE
    assert machine.sync(leader, generation + 1, {follower: b"F"}).synced.error is NONE
    assert waiting.synced.assignment == b"F"


def test_who_does_not_rejoin_within_the_rebalance_timeout_is_out() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2, rebalance_ms=15_000)
    rejoined = machine.join(follower, protocols={"range": b"changed"}, rebalance_ms=15_000)
    for _ in range(3):
        assert machine.heartbeat(leader, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        machine.wait(5_000)
    assert rejoined.joined.leader == follower, "the leader went, the next member leads"
    assert machine.heartbeat(leader, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_within_the_rebalance_timeout_is_out() -> None:
    machine = Machine()
    leader = machine.join(client="a", rebalance_ms=8_000).joined.member_id
    lazy = machine.join(client="b", rebalance_ms=8_000)
    machine.join(leader, rebalance_ms=8_000)
    generation = lazy.joined.generation
    assert machine.sync(leader, generation, {}).synced.error is NONE
    machine.wait(7_999)
    assert machine.heartbeat(leader, generation) is NONE
    assert machine.heartbeat(lazy.joined.member_id, generation) is NONE
    machine.wait(1)
    assert machine.heartbeat(leader, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.heartbeat(lazy.joined.member_id, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_is_out_though_another_syncs_late() -> None:
    machine = Machine()
    (leader, follower), _ = machine.stable(2, rebalance_ms=8_000)
    machine.join(client="lazy", rebalance_ms=8_000)
    machine.join(leader, rebalance_ms=8_000)
    generation = machine.join(follower, rebalance_ms=8_000).joined.generation
    machine.sync(leader, generation, {follower: b"F"})
    machine.wait(4_000)
    assert machine.sync(follower, generation).synced.assignment == b"F"
    machine.wait(4_000)
    assert machine.group().state is GroupState.PREPARING_REBALANCE
    assert machine.group().members.keys() == {leader, follower}


def test_new_member_that_vanishes_while_it_waits_is_dropped_after_five_minutes() -> None:
    machine = Machine()
    machine.stable(1, rebalance_ms=900_000, session_ms=1_000_000)
    newcomer = machine.join(rebalance_ms=900_000, session_ms=6_000)
    machine.wait(299_999)
    assert newcomer.waits
    machine.wait(1)
    assert newcomer.joined.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert newcomer.joined.member_id == "", "it joins without an id next time"


def test_fencing_of_strangers_and_of_old_generations() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2)
    assert machine.heartbeat("stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert machine.heartbeat(leader, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert machine.sync("stranger", generation).synced.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert machine.sync(follower, generation + 1).synced.error is ErrorCode.ILLEGAL_GENERATION
    assert (
        machine.sync(follower, generation, protocol="other").synced.error
        is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert (
        machine.sync(follower, generation, protocol_type="x").synced.error
        is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert machine.sync(follower, generation).synced.assignment == f"for {follower}".encode()
    assert machine.join("stranger").joined.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert machine.join("stranger", group="new").joined.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert machine.heartbeat(leader, 1, group="new") is ErrorCode.UNKNOWN_MEMBER_ID
    assert machine.sync(leader, 1, group="new").synced.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_during_a_rebalance_says_so() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2)
    newcomer = machine.join(client="new")
    assert machine.sync(follower, generation).synced.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert newcomer.waits
    machine.join(leader)
    machine.join(follower)
    waiting = machine.sync(follower, generation + 1)
    late = machine.join(client="late")
    assert waiting.synced.error is ErrorCode.REBALANCE_IN_PROGRESS, "who waits for an assignment is sent back"
    assert late.waits


def test_follower_that_rejoins_unchanged_hears_what_holds_and_the_leader_starts_a_rebalance() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2)
    again = machine.join(follower).joined
    assert (again.generation, again.leader, again.members) == (generation, leader, ())
    assert machine.heartbeat(leader, generation) is NONE
    leading = machine.join(leader)
    assert leading.waits
    assert machine.heartbeat(follower, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_that_rejoins_unchanged_before_it_has_synced_hears_what_holds() -> None:
    """As after a lost response to its first join."""
    machine = Machine()
    leader = machine.join(client="a").joined.member_id
    machine.join(client="b")
    first = machine.join(leader).joined
    assert machine.join(leader).joined == first
    assert len(first.members) == 2


def test_second_join_of_a_member_answers_the_first() -> None:
    machine = Machine()
    (leader, follower), _ = machine.stable(2)
    lost = machine.join(leader)
    kept = machine.join(leader)
    assert lost.joined.error is ErrorCode.REBALANCE_IN_PROGRESS
    machine.join(follower)
    assert kept.joined.error is NONE


def test_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    (leader, _), generation = machine.stable(2)
    assert machine.join(client="third").joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert machine.heartbeat(leader, generation) is NONE


def test_of_a_full_group_those_who_rejoin_first_stay() -> None:
    machine = Machine(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    (leader, slow), _ = machine.stable(2)
    lost = machine.join(leader)
    newcomer = machine.join(client="new")
    kept = machine.join(leader)
    assert lost.joined.error is ErrorCode.REBALANCE_IN_PROGRESS, "it waits already: there is room for it"
    assert machine.join(client="one too many").joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert machine.join(slow).joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (kept.joined.error, newcomer.joined.error) == (NONE, NONE)


def test_leaving() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2)
    leave = machine.coordinator.classic.leave
    assert leave("g", [LeavingMember("stranger")]) == (NONE, [ErrorCode.UNKNOWN_MEMBER_ID])
    assert leave("nobody", [LeavingMember("x")]) == (NONE, [ErrorCode.UNKNOWN_MEMBER_ID])
    assert leave("", [LeavingMember("x")]) == (ErrorCode.INVALID_GROUP_ID, [])
    assert leave("g", [LeavingMember(follower), LeavingMember(follower)]) == (
        NONE,
        [NONE, ErrorCode.UNKNOWN_MEMBER_ID],
    )
    machine.carry_out()
    assert machine.heartbeat(leader, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    leave("g", [LeavingMember(leader)])
    machine.carry_out()
    assert machine.group().state is GroupState.EMPTY
    assert machine.group().generation == generation + 1
    assert machine.stored_groups()[0].generation == generation + 1


def test_members_are_restored_and_have_a_session_to_be_heard_of() -> None:
    machine = Machine()
    (leader, follower), generation = machine.stable(2, session_ms=9_000)
    fresh = machine.reloaded()
    assert fresh.group().state is GroupState.STABLE
    fresh.wait(8_000)
    assert fresh.heartbeat(leader, generation) is NONE
    assert fresh.sync(leader, generation).synced.assignment == f"for {leader}".encode()
    fresh.wait(1_000)
    assert fresh.heartbeat(follower, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_while_loading() -> None:
    machine = Machine()
    coordinator = machine.coordinator
    assert not coordinator.state.begin_load(coordinator.state.partition_of("g")), "it is loaded"
    coordinator.unload(coordinator.state.partition_of("g"))
    assert coordinator.state.begin_load(coordinator.state.partition_of("g"))
    assert machine.join().joined.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert machine.sync("m", 1).synced.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert machine.heartbeat("m", 1) is NONE, "answered blindly: the member must not leave for nothing"
    assert machine.commit(1).result == {("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert coordinator.offsets.fetch("g", None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.list_groups()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.describe("g").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_partition_that_another_coordinator_takes_over() -> None:
    machine = Machine()
    (leader,), generation = machine.stable(1)
    newcomer = machine.join(client="b")
    machine.hold = True
    commit = machine.commit(5, member=leader, generation=generation)
    machine.coordinator.unload(machine.coordinator.state.partition_of("g"))
    machine.carry_out()
    assert newcomer.joined.error is ErrorCode.NOT_COORDINATOR
    assert commit.result == {("t", 0): ErrorCode.NOT_COORDINATOR}
    assert machine.join().joined.error is ErrorCode.NOT_COORDINATOR
    assert machine.heartbeat(leader, generation) is ErrorCode.NOT_COORDINATOR
    machine.release()


def test_empty_group_id() -> None:
    machine = Machine()
    assert machine.join(group="").joined.error is ErrorCode.INVALID_GROUP_ID
    assert machine.sync("m", 1, group="").synced.error is ErrorCode.INVALID_GROUP_ID
    assert machine.heartbeat("m", 1, group="") is ErrorCode.INVALID_GROUP_ID
    machine.commit(1, group="")
    assert machine.heartbeat("m", 1, group="") is ErrorCode.INVALID_GROUP_ID, "though it has offsets"
