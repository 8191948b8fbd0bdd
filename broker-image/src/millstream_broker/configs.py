"""Changing configuration while the broker runs: what AlterConfigs and IncrementalAlterConfigs share.

A resource is a topic, a broker (its number), or all brokers (an empty name). Its overrides are replaced as a whole,
once they are known to be valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from .config import BrokerConfig, ConfigError, Source, known_key
from .config_keys import BROKER_KEYS
from .coordination import Conflict
from .protocol.errors import ApiError, ErrorCode
from .topics import check_topic_config

if TYPE_CHECKING:
    from .broker import Broker


class Resource(IntEnum):
    """Kafka's ConfigResource types."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


Overrides = dict[str, str]


def broker_of(broker: Broker, name: str) -> int | None:
    """The broker that a resource names, None for all; raises ApiError."""
    if not name:
        return None
    if name != str(broker.broker_id):
        message = f"Unexpected broker id, expected {broker.broker_id} or empty string, but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    return broker.broker_id


def unsupported(resource_type: int) -> ApiError:
    message = f"resource type {resource_type} is not supported: expected 2 (topic) or 4 (broker)"
    return ApiError(ErrorCode.INVALID_REQUEST, message)


async def change(
    broker: Broker,
    resource_type: int,
    name: str,
    changed: Callable[[Mapping[str, str]], Overrides],
    *,
    validate_only: bool,
) -> None:
    """Replace a resource's overrides by what `changed` makes of them; raises ApiError."""
    try:
        if resource_type == Resource.TOPIC:
            overrides = changed(broker.metadata.topic(name).config)
            check_topic_config(broker, overrides)
            if not validate_only:
                await broker.coordination.set_topic_config(name, overrides)
        elif resource_type == Resource.BROKER:
            broker_id = broker_of(broker, name)
            overrides = changed(broker.metadata.state.broker_configs.get(broker_id, {}))
            _check_broker_config(overrides)
            if not validate_only:
                await broker.coordination.set_broker_config(broker_id, overrides)
        else:
            raise unsupported(resource_type)
    except Conflict:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
    if not validate_only:
        await broker.follow()


def _check_broker_config(overrides: Mapping[str, str]) -> None:
    try:
        for name in overrides:
            if not known_key(BROKER_KEYS, name).dynamic:
                message = f"Cannot update these configs dynamically: {name}"
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
        BrokerConfig().set_dynamic(Source.DYNAMIC_BROKER, overrides)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
