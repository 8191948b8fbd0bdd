"""DescribeClientQuotas: there are no quotas, so nothing matches."""

from __future__ import annotations

from millstream_kafka.protocol import describe_client_quotas
from millstream_kafka.protocol.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

from ..network.handlers import RequestContext, handler


@handler(describe_client_quotas.API)
def handle(context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_message="")
