"""DescribeClientQuotas: there are none, so nothing matches."""

from __future__ import annotations

from ..handlers import RequestContext, handler
from ..protocol import describe_client_quotas
from ..protocol.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse


@handler(describe_client_quotas.API)
def handle(context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_message="")
