"""CreateAcls (key 30): access rules to add (KIP-140); SECURITY_DISABLED without `authorizer.class.name`.

v1 adds pattern types (KIP-290); v2 is flexible; v3 allows the resource type of users (KIP-373).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, string


class AclCreation(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(since=1, default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(Struct):
    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class CreateAclsResponse(Struct):
    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


API = Api(30, "CreateAcls", (0, 3), flexible=2, request=CreateAclsRequest, response=CreateAclsResponse)
