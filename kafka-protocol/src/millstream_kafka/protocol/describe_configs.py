"""DescribeConfigs (key 32): the configuration of topics (resource_type 2) and brokers (4), with each value's source.

v0 has is_default; v1 config_source and synonyms instead (KIP-226); v3 adds type and documentation (KIP-569); v4 is
flexible. config_source: 1 topic, 2 dynamic broker, 3 dynamic default broker, 4 static broker, 5 default, 6 logger.
"""

from __future__ import annotations

from .api import Api
from .codec import Codec
from .schema import Struct, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array("string", nullable=0)


class DescribeConfigsRequest(Struct):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Struct):
    name: str = string()
    value: str | None = string(nullable=0)
    source: int = int8()


class DescribeConfigsResourceResult(Struct):
    name: str = string()
    value: str | None = string(nullable=0)
    read_only: bool = boolean()
    config_source: int = int8(since=1, default=-1)
    is_default: bool = boolean(until=0)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable=0)


class DescribeConfigsResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, encodable=True)


class DescribeConfigsResponse(Struct):
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


API = Api(
    32,
    "DescribeConfigs",
    (0, 4),
    flexible=4,
    request=DescribeConfigsRequest,
    response=DescribeConfigsResponse,
)
CONFIG = Codec(DescribeConfigsResourceResult, API.flexible)
"""A part of a response that is encoded separately (`schema.Encoded`)."""
