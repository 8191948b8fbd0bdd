"""DescribeClientQuotas: the stored quotas that a filter matches, in the order of their entities' paths."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_client_quotas
from millstream_kafka.protocol.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntity,
    QuotaEntry,
    QuotaValue,
)
from millstream_kafka.protocol.errors import ApiError

from ..coordination.coordination import Coordination
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.rights import on_cluster
from ..security.quotas.requests import Filter, names_of, values_of


def _refused(request: DescribeClientQuotasRequest, error: ApiError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(0, int(error.code), error.message, None)


@handler(describe_client_quotas.API, rights=[on_cluster(AclOperation.DESCRIBE_CONFIGS)], refused=_refused)
async def handle(
    coordination: Coordination, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        components = [
            (component.entity_type, component.match_type, component.match) for component in request.components
        ]
        wanted = Filter(components, is_strict=request.strict)
    except ApiError as error:
        return _refused(request, error)
    found = {}
    async for entity, config in cooperatively(list(coordination.entity_configs.items())):
        if wanted.matches(entity) and (values := values_of(entity, config)):
            found[entity.path] = QuotaEntry(
                [QuotaEntity(kind, name) for kind, name in names_of(entity).items()],
                [QuotaValue(key, value) for key, value in values.items()],
            )
    return DescribeClientQuotasResponse(0, 0, "", [found[path] for path in sorted(found)])
