"""A member of a mirror's group that the test moves by hand; any client may be one."""

from __future__ import annotations

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import join_group, leave_group, sync_group
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from millstream_kafka.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from millstream_kafka.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

TIMEOUT_MS = 120_000


class HandMember:
    def __init__(self, target: ClusterClient, group: str, metadata: bytes) -> None:
        self._target = target
        self._group = group
        self._metadata = metadata
        self._joined = JoinGroupResponse()

    async def join(self) -> int:
        """Join, or join again; the first member leads. Returns the number of members."""
        if not self._joined.member_id:
            self._joined = await self._join()
        self._joined = await self._join()
        assert self._joined.leader == self._joined.member_id
        return len(self._joined.members)

    async def _join(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            self._group,
            TIMEOUT_MS,
            TIMEOUT_MS,
            self._joined.member_id,
            protocol_type="mirror",
            protocols=[JoinGroupRequestProtocol("in-turn", self._metadata)],
        )
        return await self._target.call_coordinator(self._group, join_group.API, request)

    async def lead(self, assignment: bytes) -> None:
        """Give every member this assignment."""
        request = SyncGroupRequest(
            self._group,
            self._joined.generation_id,
            self._joined.member_id,
            protocol_type="mirror",
            protocol_name="in-turn",
            assignments=[
                SyncGroupRequestAssignment(one.member_id, assignment) for one in self._joined.members
            ],
        )
        synced = await self._target.call_coordinator(self._group, sync_group.API, request)
        assert ErrorCode.of(synced.error_code) is ErrorCode.NONE

    async def leave(self) -> None:
        member = self._joined.member_id
        request = LeaveGroupRequest(self._group, member, [MemberIdentity(member)])
        await self._target.call_coordinator(self._group, leave_group.API, request)
