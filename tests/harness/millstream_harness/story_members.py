"""The members of groups in a story: at most one a group, so that no step waits for another member."""

from __future__ import annotations

from typing import NamedTuple

from millstream_kafka.protocol import join_group, leave_group, sync_group

from .wire import Wire

SESSION_MS = 300_000
OWN, FORMER, GHOST, NOBODY = "own", "former", "ghost", ""
"""Whom a commit names: the group's member, the one before it, one that never was, no member."""
INSTANCE = "instance"
_PROTOCOL = "range"


class Member(NamedTuple):
    member_id: str
    instance_id: str | None


class Join(NamedTuple):
    """A new member if the group has none; else its member joins again, or a static one is replaced."""

    group: int
    static: bool
    replaces: bool
    syncs: bool


class Leave(NamedTuple):
    group: int


class StoryMembers:
    def __init__(self, wire: Wire, groups: list[str]) -> None:
        self._wire = wire
        self._groups = groups
        self._members: list[list[Member]] = [[] for _ in groups]
        self._is_member = [False for _ in groups]

    def named(self, group: int, who: str) -> str:
        """The id of that member, GHOST's if there is none."""
        if who == NOBODY:
            return ""
        known = self._members[group]
        back = {OWN: 1, FORMER: 2}.get(who)
        return GHOST if back is None or back > len(known) else known[-back].member_id

    def join(self, step: Join) -> list[int]:
        """Error codes and generations of JoinGroup, and of SyncGroup if the step has one."""
        instance_id = INSTANCE if step.static else None
        member_id = ""
        if self._is_member[step.group]:
            own = self._members[step.group][-1]
            instance_id = own.instance_id
            member_id = "" if step.replaces and instance_id else own.member_id
        request = join_group.JoinGroupRequest(
            self._groups[step.group],
            SESSION_MS,
            SESSION_MS,
            member_id,
            instance_id,
            "consumer",
            [join_group.JoinGroupRequestProtocol(_PROTOCOL, b"")],
        )
        joined = self._wire.call(join_group.API, 5 if instance_id else 3, request)
        said = [joined.error_code, joined.generation_id]
        if joined.error_code:
            return said
        self._is_member[step.group] = True
        known = self._members[step.group]
        if not known or known[-1].member_id != joined.member_id:
            known.append(Member(joined.member_id, instance_id))
        if step.syncs:
            assignment = sync_group.SyncGroupRequestAssignment(joined.member_id, b"all")
            synced = self._wire.call(
                sync_group.API,
                3,
                sync_group.SyncGroupRequest(
                    self._groups[step.group],
                    joined.generation_id,
                    joined.member_id,
                    instance_id,
                    assignments=[assignment],
                ),
            )
            said.append(synced.error_code)
        return said

    def leave(self, step: Leave) -> list[int]:
        """The error codes of the group and of its last member, which need not be one any more."""
        member = self._members[step.group][-1] if self._members[step.group] else Member(GHOST, None)
        request = leave_group.LeaveGroupRequest(
            self._groups[step.group],
            members=[leave_group.MemberIdentity(member.member_id, member.instance_id)],
        )
        left = self._wire.call(leave_group.API, 3, request)
        self._is_member[step.group] = False
        return [left.error_code, *(each.error_code for each in left.members)]
