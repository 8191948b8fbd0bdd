"""DescribeAcls: which access rules there are. There is no authorizer, so the answer is SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import describe_acls
from ..protocol.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ..protocol.errors import ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

NO_AUTHORIZER = "No Authorizer is configured on the broker"


@handler(describe_acls.API)
def handle(broker: Broker, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
