"""IncrementalAlterConfigs: change single overrides of topics and brokers (KIP-339).

Operations: 0 set, 1 delete (back to the default), 2 append to a list, 3 take from a list. All changes to a resource
happen together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..config import BrokerConfig, ConfigError, TopicConfig, Type, as_text, known_key
from ..config_keys import BROKER_KEYS, TOPIC_KEYS
from ..configs import Overrides, Resource, change
from ..protocol import incremental_alter_configs
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker

SET, DELETE, APPEND, SUBTRACT = range(4)


@handler(incremental_alter_configs.API)
async def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[await _alter(broker, resource, request.validate_only) for resource in request.resources]
    )


async def _alter(
    broker: Broker, resource: AlterConfigsResource, validate_only: bool
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)

    def changed(before: Mapping[str, str]) -> Overrides:
        after = dict(before)
        for one in resource.configs:
            _apply(broker.config, after, one, of_topic=resource.resource_type == Resource.TOPIC)
        return after

    try:
        if len({one.name for one in resource.configs}) < len(resource.configs):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        await change(
            broker, resource.resource_type, resource.resource_name, changed, validate_only=validate_only
        )
    except ApiError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


def _apply(config: BrokerConfig, overrides: Overrides, one: AlterableConfig, *, of_topic: bool) -> None:
    try:
        key = known_key(TOPIC_KEYS if of_topic else BROKER_KEYS, one.name)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if one.config_operation == DELETE:
        overrides.pop(one.name, None)
        return
    if one.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {one.name}")
    if one.config_operation == SET:
        overrides[one.name] = one.value
        return
    if one.config_operation not in (APPEND, SUBTRACT):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{one.name}: unknown operation {one.config_operation}")
    if key.type is not Type.LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"Config value append is not allowed for config key: {one.name}"
        )
    now = overrides.get(one.name)
    if now is None:
        now = as_text(TopicConfig(config, {})[one.name] if of_topic else config[one.name]) or ""
    items = [item for item in now.split(",") if item]
    given = [item.strip() for item in one.value.split(",") if item.strip()]
    if one.config_operation == APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    overrides[one.name] = ",".join(items)
