"""ListConfigResources: topics and brokers by name; other resource types have no configuration here."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import list_config_resources
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from ..administration.configs import Resource
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas
from ..runtime.steps import Steps
from ..security.acl.rights import on_cluster

TYPES_SINCE = 1


@handler(list_config_resources.API, rights=[on_cluster(AclOperation.DESCRIBE_CONFIGS)])
def handle(
    replicas: Replicas, context: RequestContext, request: ListConfigResourcesRequest
) -> Steps[ListConfigResourcesResponse]:
    supported = list(Resource) if context.version >= TYPES_SINCE else [Resource.CLIENT_METRICS]
    wanted = request.resource_types or supported
    if unknown := [kind for kind in wanted if kind not in supported]:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {unknown[0]}")
    brokers = [str(number) for number in replicas.metadata.brokers]
    names = {
        Resource.BROKER_LOGGER: brokers,
        Resource.BROKER: brokers,
        Resource.TOPIC: replicas.metadata.topics,
    }
    found = []
    for kind in names:
        for name in names[kind] if kind in wanted else ():
            found.append(ConfigResource(name, kind))
            yield
    return ListConfigResourcesResponse(config_resources=found)
