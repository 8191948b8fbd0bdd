"""AlterConfigs: replace all overrides of topics and brokers; keys that are not named return to their defaults."""

from __future__ import annotations

from millstream_kafka.protocol import alter_configs
from millstream_kafka.protocol.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from millstream_kafka.protocol.errors import ApiError

from ..configs import ConfigAdministrator
from ..handlers import RequestContext, handler
from ..slices import turns


@handler(alter_configs.API)
async def handle(
    config_administrator: ConfigAdministrator, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            await _alter(config_administrator, resource, request.validate_only)
            async for resource in turns(request.resources)
        ]
    )


async def _alter(
    config_administrator: ConfigAdministrator, resource: AlterConfigsResource, validate_only: bool
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)
    try:
        given = [(one.name, one.value) for one in resource.configs]
        await config_administrator.change(
            resource.resource_type,
            resource.resource_name,
            given,
            lambda _: {name: value or "" for name, value in given},
            validate_only=validate_only,
        )
    except ApiError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer
