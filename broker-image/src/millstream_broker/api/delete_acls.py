"""DeleteAcls: remove access rules. There is no authorizer, so the response is SECURITY_DISABLED."""

from __future__ import annotations

from millstream_kafka.protocol import delete_acls
from millstream_kafka.protocol.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler

NO_AUTHORIZER = "No Authorizer is configured."


@handler(delete_acls.API)
def handle(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
