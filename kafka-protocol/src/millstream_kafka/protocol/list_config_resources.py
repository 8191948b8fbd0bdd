"""ListConfigResources (key 74): resources with configuration: topics, brokers, groups and others (KIP-1142).

v0, for client metrics only, is flexible (KIP-714); v1 names the types to list, and returns each resource's type.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, string


class ListConfigResourcesRequest(Struct):
    resource_types: list[int] = array("int8", since=1)


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8(since=1, default=16)


class ListConfigResourcesResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)


API = Api(
    74,
    "ListConfigResources",
    (0, 1),
    flexible=0,
    request=ListConfigResourcesRequest,
    response=ListConfigResourcesResponse,
)
