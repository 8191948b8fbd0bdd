"""LeaveGroup (key 13): a member leaves its group at once.

v1 adds throttle_time_ms; v3 removes many members, static ones by their instance id (KIP-345); v4 is flexible; v5 sends
a reason (KIP-800).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, string


class MemberIdentity(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=0, default=None)
    reason: str | None = string(since=5, nullable=5, default=None)


class LeaveGroupRequest(Struct):
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=0)
    error_code: int = int16()


class LeaveGroupResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)


API = Api(13, "LeaveGroup", (0, 5), flexible=4, request=LeaveGroupRequest, response=LeaveGroupResponse)
