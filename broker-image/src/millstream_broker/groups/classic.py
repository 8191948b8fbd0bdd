"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and expiring sessions.

The classic group protocol of Kafka (KIP-62 rebalance timeout, KIP-134 initial delay, KIP-345 static members,
KIP-394 member id first, KIP-814 skip_assignment), with the same errors as in Kafka:

- a wrong generation is ILLEGAL_GENERATION, an unknown member UNKNOWN_MEMBER_ID, the former holder of a
  group.instance.id FENCED_INSTANCE_ID; a member that must rejoin gets REBALANCE_IN_PROGRESS.
- members get assignments only after the group's record is stored.

Differences from Kafka 4.3 (`tests/compat/test_groups_beside_kafka.py` compares the rest):

- If a member repeats JoinGroup or SyncGroup before the first reply, Kafka forgets the earlier call; here it
  gets REBALANCE_IN_PROGRESS, so every caller gets exactly one reply.
- When a full group turns away the last member that has not rejoined, the rebalance ends at once; Kafka waits
  for the rebalance timeout.
- A pending member that leaves a stable group starts no rebalance, because it was never in it.
- The session timeout of a returning static member applies at once; Kafka keeps the former timeout until its
  next heartbeat.
- Metadata that is not a consumer's subscription makes no rebalance fail; in Kafka some of it does.
- The initial delay is for consumers, which start in numbers. A group of mirror workers skips it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream_kafka.protocol.errors import ErrorCode

from ..coordinator.effects import Caller
from ..coordinator.state import Continuation
from .errors import group_error
from .group import Group, GroupState, Member
from .messages import GroupConfig, Join, JoinedMember, JoinResult, LeavingMember, Sync, SyncResult
from .records import group_record
from .state import State, unavailable

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A new member has no id to send heartbeats with; without a reply to its JoinGroup by then, it is dropped."""
UNDELAYED = ("mirror",)
"""Protocol types of groups whose first members need not wait for others."""
LONGEST_NAME = 32_000
"""Limit in bytes of the name in a new member's id, as a string of the protocol must hold both."""
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE


class ClassicGroups:
    """The groups of partitions that are loaded, and their members."""

    def __init__(self, state: State, config: GroupConfig, new_id: Callable[[], str]) -> None:
        self._state = state
        self._config = config
        self._new_id = new_id
        self.by_id: dict[str, Group] = {}
        """Only groups of partitions that are loaded."""

    # ---- JoinGroup

    def join(self, caller: Caller, event: Join) -> None:
        error = unavailable(self._state, event.group_id)
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not error and not low <= event.session_timeout_ms <= high:
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        if not error and event.member_id and event.group_id not in self.by_id:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if not error and len((event.instance_id or event.client_id).encode()) > LONGEST_NAME:
            error = ErrorCode.INVALID_REQUEST
        if error:
            self._state.reply(caller, JoinResult(error, event.member_id))
            return
        group = self.by_id.get(event.group_id)
        if group is None:
            group = Group(event.group_id, state_timestamp=self._state.wall_clock)
            self._store_group(group, lambda error: None)
            self.by_id[event.group_id] = group
        if not self._has_room(group, event.member_id):
            if event.member_id in group.members:
                self._drop(group, event.member_id)
            self._state.reply(caller, JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        elif not group.supports(event.protocol_type, event.protocols):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif not event.member_id:
            self._join_new(caller, group, event)
        elif event.member_id in group.pending:
            self._add(caller, group, event, event.member_id)
        else:
            error = group.check_member(event.member_id, event.instance_id)
            if not error:
                self._join_again(caller, group, event, group.members[event.member_id])
        if error:
            self._state.reply(caller, JoinResult(error, event.member_id))
        self._complete_join_if_all_joined(group)

    def _has_room(self, group: Group, member_id: str) -> bool:
        size = self._config.group_max_size
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is _PREPARING:
            waiting = sum(1 for other in group.members.values() if other.join is not None)
            return (member is not None and member.join is not None) or waiting < size
        return member is not None or len(group.members) < size

    def _join_new(self, caller: Caller, group: Group, event: Join) -> None:
        member_id = f"{event.instance_id or event.client_id}-{self._new_id()}"
        if event.instance_id is not None and event.instance_id in group.static:
            self._replace_static(caller, group, event, member_id)
        elif event.instance_id is None and event.member_id_required:
            group.pending.add(member_id)
            self._state.timers.set(
                ("session", group.group_id, member_id), self._state.now + event.session_timeout_ms
            )
            self._state.reply(caller, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(caller, group, event, member_id)

    def _add(self, caller: Caller, group: Group, event: Join, member_id: str) -> None:
        if group.initial_delay_left_ms is not None:
            group.member_joined_in_delay = True
        member = Member(
            member_id,
            event.instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            join=caller,
            is_new=True,
        )
        group.add(member, event.protocol_type)
        self.restart_session(group, member)
        self._prepare_rebalance(group)

    def _join_again(self, caller: Caller, group: Group, event: Join, member: Member) -> None:
        unchanged = member.protocols == event.protocols
        leads_stable = group.state is GroupState.STABLE and group.leader == member.member_id
        if group.state is _PREPARING or not unchanged or leads_stable:
            self._update(caller, group, event, member)
            self._prepare_rebalance(group)
        else:
            # The response was lost, or a follower rejoins for no reason: repeat the current state.
            self._state.reply(caller, self._joined(group, member))

    def _update(self, caller: Caller, group: Group, event: Join, member: Member) -> None:
        self._answer_waiting(member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.change_protocols(member, event.protocols)
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.join = caller

    def _replace_static(self, caller: Caller, group: Group, event: Join, member_id: str) -> None:
        """Give a static member that returns without its member id its former place, and fence the previous holder."""
        assert event.instance_id is not None
        old_id = group.static[event.instance_id]
        member = group.members[old_id]
        before = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
        old_leader = group.leader
        self._answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self._end_session(group, old_id)
        group.rename(member, member_id)
        self._update(caller, group, event, member)
        self.restart_session(group, member)
        if group.state is _COMPLETING:
            # The leader may know the old id: an assignment by that name would not reach this member.
            self._prepare_rebalance(group)
        if group.state is not GroupState.STABLE:
            return
        if group.selected_protocol() != group.protocol:
            self._prepare_rebalance(group)
            return

        was_late = False

        def stored(error: ErrorCode) -> None:
            if was_late and not error and group.state is GroupState.STABLE:
                # The log has the new member id, and memory the old one, or another.
                self._store_group(group, lambda error: None)
            if member.join is not caller:
                return  # it got a reply or was fenced meanwhile
            if group.state is not GroupState.STABLE:
                return  # a rebalance has begun: its end replies
            member.join = None
            if error:
                group.change_protocols(member, before[0])
                _, member.session_timeout_ms, member.rebalance_timeout_ms = before
                self._end_session(group, member_id)
                group.rename(member, old_id)
                self.restart_session(group, member)
                self._state.reply(caller, JoinResult(group_error(error), ""))
                return
            self.restart_session(group, member)
            leads = group.leader == member_id
            if event.may_skip_assignment:
                self._state.reply(caller, self._joined(group, member, skip_assignment=leads))
            else:
                # Older clients would assign in vain if they learned that they lead a stable group, so they
                # get the leader's former id.
                self._state.reply(caller, self._joined(group, member, leader=old_leader))

        def late(error: ErrorCode) -> None:
            nonlocal was_late
            was_late = True
            stored(error)

        self._store_group(group, stored, if_late=late)

    def _joined(
        self, group: Group, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        leader = leader or group.leader or ""
        members: tuple[JoinedMember, ...] = ()
        if leader == member.member_id:
            members = tuple(
                JoinedMember(other.member_id, other.instance_id, other.metadata(group.protocol))
                for other in group.members.values()
            )
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            leader,
            members,
            skip_assignment,
        )

    # ---- the rebalance

    def _prepare_rebalance(self, group: Group) -> None:
        if group.state is _PREPARING:
            return
        if group.state is _COMPLETING:
            self._end_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._state.timers.cancel(("sync", group.group_id, ""))
        wait = group.rebalance_timeout_ms
        group.initial_delay_left_ms = None
        delay = self._config.group_initial_rebalance_delay_ms
        if group.state is GroupState.EMPTY and delay and group.protocol_type not in UNDELAYED:
            group.initial_delay_left_ms, wait = max(wait - delay, 0), delay
            group.member_joined_in_delay = False
        self._enter(group, _PREPARING)
        self._state.timers.set(("join", group.group_id, ""), self._state.now + wait)
        self._complete_join_if_all_joined(group)

    def _complete_join_if_all_joined(self, group: Group) -> None:
        if group.state is _PREPARING and group.initial_delay_left_ms is None and group.all_joined:
            self._complete_join(group)

    def _join_time_is_up(self, group: Group) -> None:
        left = group.initial_delay_left_ms
        if left and group.member_joined_in_delay:
            wait = min(self._config.group_initial_rebalance_delay_ms, left)
            group.initial_delay_left_ms = left - wait
            group.member_joined_in_delay = False
            self._state.timers.set(("join", group.group_id, ""), self._state.now + wait)
        else:
            group.initial_delay_left_ms = None
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        self._state.timers.cancel(("join", group.group_id, ""))
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                self._drop(group, member.member_id)
        if group.members and not group.elect_leader():
            # Only static members, none of which joined: they stay until their sessions expire.
            self._state.timers.set(("join", group.group_id, ""), self._state.now + group.rebalance_timeout_ms)
            return
        group.generation += 1
        if not group.members:
            group.protocol = group.leader = None
            group.note_subscriptions()
            self._enter(group, GroupState.EMPTY)
            self._store_group(group, lambda error: None)
            return
        group.protocol = group.selected_protocol()
        group.note_subscriptions()
        self._enter(group, _COMPLETING)
        group.unsynced = set(group.members)
        self._state.timers.set(("sync", group.group_id, ""), self._state.now + group.rebalance_timeout_ms)
        for member in group.members.values():
            if member.join is not None:
                self._state.reply(member.join, self._joined(group, member))
            member.join = None
            member.is_new = False
            self.restart_session(group, member)

    def _sync_time_is_up(self, group: Group) -> None:
        if not group.unsynced:
            return  # all have sent their requests; only the leader's assignment is not stored yet
        for member_id in list(group.unsynced):
            self._drop(group, member_id)
        self._prepare_rebalance(group)

    def _end_syncs(self, group: Group, error: ErrorCode) -> None:
        """Reply to all that wait for an assignment: with the assignment, or with the error."""
        for member in group.members.values():
            if error:
                member.assignment = b""
            if member.sync is not None:
                caller, member.sync = member.sync, None
                self._state.reply(caller, SyncResult(error) if error else self._synced(group, member))
                self.restart_session(group, member)

    @staticmethod
    def _synced(group: Group, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)

    # ---- SyncGroup

    def sync(self, caller: Caller, event: Sync) -> None:
        error = unavailable(self._state, event.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance in progress is lost with the old coordinator: the member must rejoin here.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        group = self.by_id.get(event.group_id)
        if not error:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._check_sync(group, event)
        if error or group is None:
            self._state.reply(caller, SyncResult(error))
            return
        member = group.members[event.member_id]
        group.unsynced.discard(event.member_id)
        if group.state is GroupState.STABLE:
            self.restart_session(group, member)
            self._state.reply(caller, self._synced(group, member))
            return
        if member.sync is not None:
            self._state.reply(member.sync, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = caller
        if group.leader == event.member_id:
            self._store_assignments(group, event)

    def _check_sync(self, group: Group, event: Sync) -> ErrorCode:
        if error := group.check_current(event.member_id, event.instance_id, event.generation):
            return error
        if event.protocol_type not in (None, group.protocol_type) or event.protocol not in (
            None,
            group.protocol,
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is _PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _store_assignments(self, group: Group, event: Sync) -> None:
        assignments = {member_id: event.assignments.get(member_id, b"") for member_id in group.members}

        def stored(error: ErrorCode) -> None:
            if group.state is not _COMPLETING or group.generation != event.generation:
                return  # another rebalance has begun, and has replied to waiting callers
            if error:
                self._end_syncs(group, group_error(error))
                self._prepare_rebalance(group)
                return
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            self._enter(group, GroupState.STABLE)
            self._end_syncs(group, ErrorCode.NONE)

        self._store_group(group, stored, assignments, if_late=stored)

    # ---- Heartbeat

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        error = unavailable(self._state, group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE
        group = self.by_id.get(group_id)
        if error or group is None:
            return error or ErrorCode.UNKNOWN_MEMBER_ID
        if error := group.check_current(member_id, instance_id, generation):
            return error
        self.restart_session(group, group.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is _PREPARING else ErrorCode.NONE

    # ---- LeaveGroup, and expiring sessions

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> tuple[ErrorCode, list[ErrorCode]]:
        """One error for all, else one for each; without a member id, the holder of the instance id leaves."""
        if error := unavailable(self._state, group_id):
            return error, []
        group = self.by_id.get(group_id)
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        return ErrorCode.NONE, [self._leave(group, member) for member in leaving]

    def _leave(self, group: Group, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if member_id in group.pending:
            self._drop_pending(group, member_id)
            return ErrorCode.NONE
        if not member_id and leaving.instance_id is not None:
            member_id = group.static.get(leaving.instance_id, "")
        error = group.check_member(member_id, leaving.instance_id)
        if not error:
            self._drop(group, member_id)
            self._rebalance_without(group)
        return error

    def _session_is_over(self, group: Group, member_id: str) -> None:
        if member_id in group.pending:
            self._drop_pending(group, member_id)
            return
        member = group.members.get(member_id)
        if member is None or (not member.is_new and (member.join is not None or member.sync is not None)):
            return  # a caller that waits for a reply is alive; its session restarts with the reply
        self._drop(group, member_id)
        self._rebalance_without(group)

    def _drop_pending(self, group: Group, member_id: str) -> None:
        group.pending.discard(member_id)
        self._end_session(group, member_id)
        self._complete_join_if_all_joined(group)

    def _drop(self, group: Group, member_id: str) -> None:
        self._answer_waiting(group.members[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        self._end_session(group, member_id)
        group.remove(member_id)

    def _rebalance_without(self, group: Group) -> None:
        if group.state in (GroupState.STABLE, _COMPLETING):
            self._prepare_rebalance(group)
        else:
            self._complete_join_if_all_joined(group)

    def _answer_waiting(self, member: Member, error: ErrorCode) -> None:
        if member.join is not None:
            caller, member.join = member.join, None
            known_id = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self._state.reply(caller, JoinResult(error, known_id))
        if member.sync is not None:
            caller, member.sync = member.sync, None
            self._state.reply(caller, SyncResult(error))

    # ---- for the shard and the committed offsets

    def restart_session(self, group: Group, member: Member) -> None:
        timeout = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._state.timers.set(("session", group.group_id, member.member_id), self._state.now + timeout)

    def loaded(self, group: Group) -> None:
        """Take a group from the log; members get a full session timeout to report back."""
        self.by_id[group.group_id] = group
        for member in group.members.values():
            self.restart_session(group, member)
        if len(group.members) > self._config.group_max_size:
            self._prepare_rebalance(group)  # group.max.size has become smaller

    def unload(self, group: Group) -> None:
        """Forget a group, because another coordinator has it now."""
        for member in group.members.values():
            self._answer_waiting(member, ErrorCode.NOT_COORDINATOR)
        self.remove(group)

    def remove(self, group: Group) -> None:
        for member_id in (*group.members, *group.pending):
            self._end_session(group, member_id)
        for what in ("join", "sync"):
            self._state.timers.cancel((what, group.group_id, ""))
        self._enter(group, GroupState.DEAD)
        del self.by_id[group.group_id]

    def due(self, what: str, group_id: str, member_id: str) -> None:
        """A timer of a group is due."""
        if group := self.by_id.get(group_id):
            if what == "session":
                self._session_is_over(group, member_id)
            elif what == "join":
                self._join_time_is_up(group)
            else:
                self._sync_time_is_up(group)

    def answer_all(self, error: ErrorCode) -> None:
        """Reply to every waiting caller, because the broker stops."""
        for group in self.by_id.values():
            for member in group.members.values():
                self._answer_waiting(member, error)

    def _enter(self, group: Group, state: GroupState) -> None:
        group.state = state
        group.state_timestamp = self._state.wall_clock

    def _end_session(self, group: Group, member_id: str) -> None:
        self._state.timers.cancel(("session", group.group_id, member_id))

    def _store_group(
        self,
        group: Group,
        then: Continuation,
        assignments: dict[str, bytes] | None = None,
        if_late: Continuation | None = None,
    ) -> None:
        self._state.store(group.group_id, [group_record(group, assignments)], then, if_late)
