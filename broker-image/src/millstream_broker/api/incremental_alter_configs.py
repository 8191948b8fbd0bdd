"""IncrementalAlterConfigs: change single overrides of topics and brokers (KIP-339).

Operations: 0 set, 1 delete (back to the default), 2 append to a list, 3 remove from a list. The changes to a
resource are all made, or none is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import incremental_alter_configs
from millstream_kafka.protocol.compiler import MAX_STRING
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from ..administration.configs import ConfigAdministrator, Overrides, Resource
from ..config.config import BrokerConfig, TopicConfig
from ..config.config_types import Type, as_text
from ..config.listener_keys import broker_key
from ..config.topic_keys import TOPIC_KEYS
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.config_rights import check_configuration, rights_on_configuration
from ..security.audit.administration import changed_configs
from ..security.session import ClientSession

SET, DELETE, APPEND, SUBTRACT = range(4)


@handler(
    incremental_alter_configs.API,
    changes=changed_configs,
    rights=rights_on_configuration(AclOperation.ALTER_CONFIGS),
)
async def handle(
    authorizer: Authorizer,
    config_administrator: ConfigAdministrator,
    config: BrokerConfig,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse:
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter(
                authorizer,
                config_administrator,
                config,
                context.session,
                resource,
                named,
                request.validate_only,
            )
            async for resource in cooperatively(request.resources)
        ]
    )


async def _alter(
    authorizer: Authorizer,
    config_administrator: ConfigAdministrator,
    config: BrokerConfig,
    session: ClientSession,
    resource: AlterConfigsResource,
    named: Counter[tuple[int, str]],
    validate_only: bool,
) -> AlterConfigsResourceResponse:
    kind, name = resource.resource_type, resource.resource_name
    answer = AlterConfigsResourceResponse(0, None, kind, name)

    def changed(before: Mapping[str, str]) -> Overrides:
        after = dict(before)
        for change in resource.configs:
            _apply(config, after, change, of_topic=kind == Resource.TOPIC)
        return after

    try:
        if named[kind, name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        check_configuration(authorizer, session, AclOperation.ALTER_CONFIGS, kind, name)
        given = [
            (change.name, "" if change.config_operation == DELETE else change.value)
            for change in resource.configs
        ]
        await config_administrator.change(kind, name, given, changed, validate_only=validate_only)
    except ApiError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


def _apply(config: BrokerConfig, overrides: Overrides, change: AlterableConfig, *, of_topic: bool) -> None:
    value = change.value or ""
    if change.config_operation == DELETE:
        overrides.pop(change.name, None)
    elif change.config_operation == SET:
        overrides[change.name] = value
    elif change.config_operation in (APPEND, SUBTRACT):
        key = TOPIC_KEYS.get(change.name) if of_topic else broker_key(change.name)
        if key is None or key.type is not Type.LIST:
            what = "append" if change.config_operation == APPEND else "subtract"
            message = (
                f"Can't {what.upper()} to key {change.name} because its type is not LIST."
                if of_topic
                else f"Config value {what} is not allowed for config key: {change.name}"
            )
            raise ApiError(ErrorCode.INVALID_CONFIG, message)
        now = overrides.get(change.name)
        if now is None:
            now = as_text(TopicConfig(config, {})[change.name] if of_topic else config[change.name]) or ""
        items = [item for item in now.split(",") if item]
        given = [item.strip() for item in value.split(",") if item.strip()]
        if change.config_operation == APPEND:
            items += [item for item in given if item not in items]
        else:
            items = [item for item in items if item not in given]
        if (size := len((text := ",".join(items)).encode())) > MAX_STRING:
            message = (
                f"{change.name} would have {size} bytes, more than {MAX_STRING}: no response could show it"
            )
            raise ApiError(ErrorCode.INVALID_CONFIG, message)
        overrides[change.name] = text
    else:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{change.name}: unknown operation {change.config_operation}"
        )
