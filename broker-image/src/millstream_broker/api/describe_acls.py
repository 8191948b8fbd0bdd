"""DescribeAcls: which access rules there are. There is no authorizer, so the answer is SECURITY_DISABLED."""

from __future__ import annotations

from ..handlers import RequestContext, handler
from ..protocol import describe_acls
from ..protocol.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ..protocol.errors import ErrorCode

NO_AUTHORIZER = "No Authorizer is configured on the broker"


@handler(describe_acls.API)
def handle(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
