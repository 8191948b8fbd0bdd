"""JoinGroup (key 11): a member joins a group and waits for the others; the leader gets the list of members.

v1 adds rebalance_timeout_ms; v2 throttle_time_ms; v4 makes a new member join twice, the second time with the id it got
(MEMBER_ID_REQUIRED, KIP-394); v5 adds static members (KIP-345); v6 is flexible; v7 returns protocol_type (KIP-559);
v8 sends a reason (KIP-800); v9 lets a static leader skip the assignment.
"""

from __future__ import annotations

from .api import Api
from .schema import Bytes, Struct, array, boolean, bytes_, int16, int32, string


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: Bytes = bytes_()


class JoinGroupRequest(Struct):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=5, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable=8, default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=5, default=None)
    metadata: Bytes = bytes_()


class JoinGroupResponse(Struct):
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable=7, default=None)
    protocol_name: str | None = string(nullable=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


API = Api(11, "JoinGroup", (0, 9), flexible=6, request=JoinGroupRequest, response=JoinGroupResponse)
