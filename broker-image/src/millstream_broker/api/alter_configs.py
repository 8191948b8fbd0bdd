"""AlterConfigs: replace all overrides of topics and brokers; other keys return to their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from millstream_kafka.protocol import alter_configs
from millstream_kafka.protocol.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from millstream_kafka.protocol.errors import ApiError

from ..administration.configs import ConfigAdministrator, Overrides
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..topic_rules.mirrored_topics import check_replaced


@handler(alter_configs.API)
async def handle(
    config_administrator: ConfigAdministrator, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            await _alter(config_administrator, resource, request.validate_only)
            async for resource in cooperatively(request.resources)
        ]
    )


def _replaced(given: Overrides, before: Mapping[str, str]) -> Overrides:
    check_replaced(before, given)
    return given


async def _alter(
    config_administrator: ConfigAdministrator, resource: AlterConfigsResource, validate_only: bool
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)
    try:
        given = [(entry.name, entry.value) for entry in resource.configs]
        await config_administrator.change(
            resource.resource_type,
            resource.resource_name,
            given,
            partial(_replaced, {name: value or "" for name, value in given}),
            validate_only=validate_only,
        )
    except ApiError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer
