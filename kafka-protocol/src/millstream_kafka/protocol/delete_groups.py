"""DeleteGroups (key 42): deletes empty groups with their offsets (KIP-229).

v2 is flexible; v3 adds an error message for each group (Kafka 4.4).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, string


class DeleteGroupsRequest(Struct):
    groups_names: list[str] = array("string")


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = string(since=3, nullable=3, default=None)


class DeleteGroupsResponse(Struct):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


API = Api(42, "DeleteGroups", (0, 3), flexible=2, request=DeleteGroupsRequest, response=DeleteGroupsResponse)
