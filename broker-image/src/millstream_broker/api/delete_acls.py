"""DeleteAcls: remove access rules. There is no authorizer, so the answer is SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import delete_acls
from ..protocol.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ..protocol.errors import ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

NO_AUTHORIZER = "No Authorizer is configured."


@handler(delete_acls.API)
def handle(broker: Broker, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
