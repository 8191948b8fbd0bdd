"""DescribeAcls: list access rules. There is no authorizer, so the response is SECURITY_DISABLED."""

from __future__ import annotations

from millstream_kafka.protocol import describe_acls
from millstream_kafka.protocol.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler

NO_AUTHORIZER = "No Authorizer is configured on the broker"


@handler(describe_acls.API)
def handle(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
