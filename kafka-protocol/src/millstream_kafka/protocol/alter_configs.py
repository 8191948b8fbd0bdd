"""AlterConfigs (key 33): replaces the configuration of a topic or broker; other keys return to their defaults.

v2 is flexible. IncrementalAlterConfigs has taken its place (KIP-339).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = string()
    value: str | None = string(nullable=0)


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Struct):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Struct):
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


API = Api(33, "AlterConfigs", (0, 2), flexible=2, request=AlterConfigsRequest, response=AlterConfigsResponse)
