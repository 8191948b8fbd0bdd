"""DescribeGroups (key 15): the state of groups, their members and assignments.

v1 adds throttle_time_ms; v3 authorized operations (KIP-430); v4 static members (KIP-345); v5 is flexible; v6
reports unknown groups with an error (KIP-1043).
"""

from __future__ import annotations

from .api import Api
from .schema import Bytes, Struct, array, boolean, bytes_, int16, int32, string


class DescribeGroupsRequest(Struct):
    groups: list[str] = array("string")
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: Bytes = bytes_()
    member_assignment: Bytes = bytes_()


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string(since=6, nullable=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-2147483648)


class DescribeGroupsResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)


API = Api(
    15, "DescribeGroups", (0, 6), flexible=5, request=DescribeGroupsRequest, response=DescribeGroupsResponse
)
