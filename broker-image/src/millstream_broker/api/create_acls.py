"""CreateAcls: add access rules. There is no authorizer, so the response is SECURITY_DISABLED."""

from __future__ import annotations

from millstream_kafka.protocol import create_acls
from millstream_kafka.protocol.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler

NO_AUTHORIZER = "No Authorizer is configured."


@handler(create_acls.API)
def handle(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused for _ in request.creations])
