"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import describe_cluster
from ..protocol.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from ..protocol.errors import ApiError, ErrorCode
from . import RequestContext, handler
from .metadata import CLUSTER_OPERATIONS, NOT_ASKED

if TYPE_CHECKING:
    from ..broker import Broker

BROKERS = 1


@handler(describe_cluster.API)
def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            if request.endpoint_type != 2
            else ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "the request was sent to a broker's endpoint",
        )
    cluster = broker.metadata
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            DescribeClusterBroker(one.broker_id, endpoint.host, endpoint.port, one.rack)
            for one in cluster.brokers.values()
            for endpoint in (one.endpoint(context.listener_name),)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
