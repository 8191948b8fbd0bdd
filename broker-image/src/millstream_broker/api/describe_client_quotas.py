"""DescribeClientQuotas: there are no quotas, so nothing matches."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_client_quotas
from millstream_kafka.protocol.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_cluster


@handler(describe_client_quotas.API, rights=[on_cluster(AclOperation.DESCRIBE_CONFIGS)])
def handle(context: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_message="")
