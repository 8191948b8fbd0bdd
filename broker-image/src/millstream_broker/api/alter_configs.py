"""AlterConfigs: replace all overrides of topics and brokers; other keys return to their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from millstream_kafka.acl import AclOperation
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
from ..security.acl.authorizer import Authorizer
from ..security.acl.config_rights import check_configuration, rights_on_configuration
from ..security.audit.administration import changed_configs
from ..security.session import ClientSession
from ..topic_rules.mirrored_topics import check_replaced


@handler(
    alter_configs.API, changes=changed_configs, rights=rights_on_configuration(AclOperation.ALTER_CONFIGS)
)
async def handle(
    authorizer: Authorizer,
    config_administrator: ConfigAdministrator,
    context: RequestContext,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            await _alter(authorizer, config_administrator, context.session, resource, request.validate_only)
            async for resource in cooperatively(request.resources)
        ]
    )


def _replaced(given: Overrides, before: Mapping[str, str]) -> Overrides:
    check_replaced(before, given)
    return given


async def _alter(
    authorizer: Authorizer,
    config_administrator: ConfigAdministrator,
    session: ClientSession,
    resource: AlterConfigsResource,
    validate_only: bool,
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)
    try:
        check_configuration(
            authorizer, session, AclOperation.ALTER_CONFIGS, resource.resource_type, resource.resource_name
        )
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
