"""DescribeClientQuotas: there are none, so nothing matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import describe_client_quotas
from ..protocol.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(describe_client_quotas.API)
def handle(
    broker: Broker, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_message="")
