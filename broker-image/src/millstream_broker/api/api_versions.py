"""ApiVersions: the APIs that this broker serves, and their versions.

The response to an unknown version is UNSUPPORTED_VERSION with the list, in v0, so that the client can retry
(KIP-511). A client that names the cluster and node that it expects (v5, KIP-1242) gets REBOOTSTRAP_REQUIRED from
another broker: addresses are reused. The only feature is `transaction.version`, always at its highest level, by which
clients choose the newer protocol of transactions (KIP-890).
"""

from __future__ import annotations

import re

from millstream_kafka.protocol import api_versions
from millstream_kafka.protocol.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import Handlers, RequestContext, handler
from ..replication.replicas import Replicas
from ..transactions.messages import SERVER_VERSION

SOFTWARE_SINCE = 3
EXPECTED_NODE_SINCE = 5
UNKNOWN_NODE = -1
TRANSACTION_VERSION = "transaction.version"
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handler(api_versions.API)
def handle(
    handlers: Handlers, replicas: Replicas, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    known = api_versions.API.serves(context.version)
    if known and context.version >= SOFTWARE_SINCE:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if known and context.version >= EXPECTED_NODE_SINCE:
        if (request.cluster_id is None) != (request.node_id == UNKNOWN_NODE):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        this_broker = replicas.metadata.cluster_id, replicas.broker_id
        if request.cluster_id is not None and (request.cluster_id, request.node_id) != this_broker:
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(key, *handlers[key].api.versions) for key in sorted(handlers)],
        supported_features=[SupportedFeatureKey(TRANSACTION_VERSION, 0, SERVER_VERSION)],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeatureKey(TRANSACTION_VERSION, SERVER_VERSION, SERVER_VERSION)],
    )
