"""ListGroups (key 16): the groups that this broker coordinates.

v1 adds throttle_time_ms; v3 is flexible; v4 filters by state and returns it (KIP-518), v5 by
type (KIP-848).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, string


class ListGroupsRequest(Struct):
    states_filter: list[str] = array("string", since=4)
    types_filter: list[str] = array("string", since=5)


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


class ListGroupsResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


API = Api(16, "ListGroups", (0, 5), flexible=3, request=ListGroupsRequest, response=ListGroupsResponse)
