"""DescribeAcls (key 29): a filter of access rules to list (KIP-140); SECURITY_DISABLED without `authorizer.class.name`.

v1 adds pattern types (KIP-290); v2 is flexible; v3 allows the resource type of users (KIP-373).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, string


class DescribeAclsRequest(Struct):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable=0)
    pattern_type_filter: int = int8(since=1, default=3)
    principal_filter: str | None = string(nullable=0)
    host_filter: str | None = string(nullable=0)
    operation: int = int8()
    permission_type: int = int8()


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(since=1, default=3)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


API = Api(29, "DescribeAcls", (0, 3), flexible=2, request=DescribeAclsRequest, response=DescribeAclsResponse)
