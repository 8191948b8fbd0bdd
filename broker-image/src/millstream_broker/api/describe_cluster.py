"""DescribeCluster: the brokers and the controller (KIP-700)."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import describe_cluster
from millstream_kafka.protocol.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from .metadata import NOT_ASKED

BROKERS, CONTROLLERS = 1, 2


@handler(
    describe_cluster.API,
    rights=[
        Right(
            AclOperation.DESCRIBE,
            ResourceType.CLUSTER,
            "the cluster, for its authorized operations",
            without="no authorized operation (0); brokers and controller are shown to everybody",
        )
    ],
)
def handle(
    authorizer: Authorizer,
    replicas: Replicas,
    context: RequestContext,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        message = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        )
        raise ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, message)
    if request.endpoint_type != BROKERS:
        message = f"Unsupported endpoint type {request.endpoint_type}"
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, message)
    cluster = replicas.metadata
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            DescribeClusterBroker(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            for broker in cluster.brokers.values()
            for endpoint in (broker.endpoint(context.session.listener),)
        ],
        cluster_authorized_operations=(
            authorizer.cluster_operations(context.session)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )
