"""DescribeCluster (key 60): brokers, controller and cluster id, without the topics (KIP-700).

Flexible from v0. v1 requests brokers (endpoint_type 1) or controllers (2) (KIP-919); v2 fenced brokers too (KIP-1073).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int8, int16, int32, string


class DescribeClusterRequest(Struct):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


class DescribeClusterBroker(Struct):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=0, default=None)
    is_fenced: bool = boolean(since=2)


class DescribeClusterResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-2147483648)


API = Api(
    60,
    "DescribeCluster",
    (0, 2),
    flexible=0,
    request=DescribeClusterRequest,
    response=DescribeClusterResponse,
)
