"""ApiVersions (key 18): the broker's APIs and versions; the first request on a connection.

v1 adds throttle_time_ms; v3 (flexible, KIP-511) names the client's software and adds features (KIP-584), as tagged
fields; v4 lets features start at version 0; v5 names the cluster and node that the client expects (KIP-1242).
A request in a version that the broker does not know is answered in v0 with error 35 (UNSUPPORTED_VERSION) and the
api_keys, and the response header is always v0.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Struct):
    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)
    cluster_id: str | None = string(since=5, nullable=5, default=None)
    node_id: int = int32(since=5, default=-1)


class ApiVersion(Struct):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Struct):
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(Struct):
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch: int = int64(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)


API = Api(18, "ApiVersions", (0, 5), flexible=3, request=ApiVersionsRequest, response=ApiVersionsResponse)
