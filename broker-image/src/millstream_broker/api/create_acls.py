"""CreateAcls: add access rules. There is no authorizer, so the answer is SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import create_acls
from ..protocol.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ..protocol.errors import ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

NO_AUTHORIZER = "No Authorizer is configured."


@handler(create_acls.API)
def handle(broker: Broker, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return CreateAclsResponse(results=[refused for _ in request.creations])
