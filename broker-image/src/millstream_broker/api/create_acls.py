"""CreateAcls: add access rules. There is no authorizer, so the answer is SECURITY_DISABLED."""

from __future__ import annotations

from ..handlers import RequestContext, handler
from ..protocol import create_acls
from ..protocol.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ..protocol.errors import ErrorCode

NO_AUTHORIZER = "No Authorizer is configured."


@handler(create_acls.API)
def handle(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused for _ in request.creations])
