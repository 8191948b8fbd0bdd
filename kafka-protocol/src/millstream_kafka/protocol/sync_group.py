"""SyncGroup (key 14): the leader submits all assignments, each member gets its own.

v1 adds throttle_time_ms; v3 static members (KIP-345); v4 is flexible; v5 adds protocol type and name (KIP-559).
"""

from __future__ import annotations

from .api import Api
from .schema import Bytes, Struct, array, bytes_, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: Bytes = bytes_()


class SyncGroupRequest(Struct):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3, default=None)
    protocol_type: str | None = string(since=5, nullable=5, default=None)
    protocol_name: str | None = string(since=5, nullable=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable=5, default=None)
    protocol_name: str | None = string(since=5, nullable=5, default=None)
    assignment: Bytes = bytes_()


API = Api(14, "SyncGroup", (0, 5), flexible=4, request=SyncGroupRequest, response=SyncGroupResponse)
