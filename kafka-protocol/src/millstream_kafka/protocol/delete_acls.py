"""DeleteAcls (key 31): filters of access rules to delete (KIP-140); SECURITY_DISABLED without `authorizer.class.name`.

v1 adds pattern types (KIP-290); v2 is flexible; v3 allows the resource type of users (KIP-373).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, string


class DeleteAclsFilter(Struct):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable=0)
    pattern_type_filter: int = int8(since=1, default=3)
    principal_filter: str | None = string(nullable=0)
    host_filter: str | None = string(nullable=0)
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsRequest(Struct):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(since=1, default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsFilterResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(Struct):
    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


API = Api(31, "DeleteAcls", (0, 3), flexible=2, request=DeleteAclsRequest, response=DeleteAclsResponse)
