"""DeleteAcls: remove access rules. There is no authorizer, so the answer is SECURITY_DISABLED."""

from __future__ import annotations

from ..handlers import RequestContext, handler
from ..protocol import delete_acls
from ..protocol.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ..protocol.errors import ErrorCode

NO_AUTHORIZER = "No Authorizer is configured."


@handler(delete_acls.API)
def handle(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
