"""Changing configuration while the broker runs: what AlterConfigs and IncrementalAlterConfigs share.

A resource is a topic, a broker (its number), or all brokers (an empty name). Its overrides are replaced as a whole,
once they are known to be valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from .config_keys import BROKER_KEYS
from .coordination import Conflict
from .metadata import check_topic_name
from .protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from .broker import Broker


class Resource(IntEnum):
    """Kafka's ConfigResource types."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


Overrides = dict[str, str]


def check_broker(broker: Broker, name: str, what: str = "Node", alternative: str = "") -> None:
    """Raises ApiError unless the name is this broker's number."""
    if not re.fullmatch(r"[+-]?\d+", name):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}")
    if int(name) != broker.broker_id:
        message = f"Unexpected broker id, expected {broker.broker_id}{alternative}, but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


async def change(
    broker: Broker,
    resource_type: int,
    name: str,
    given: Sequence[tuple[str, str | None]],
    changed: Callable[[Mapping[str, str]], Overrides],
    *,
    validate_only: bool,
) -> None:
    """Replace a resource's overrides by what `changed` makes of them; raises ApiError.

    `given` are the keys of the request, with the values that must not be null.
    """
    if unset := [key for key, value in given if value is None]:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(unset)}")
    if len({key for key, _ in given}) < len(given):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    async with broker.configs.changing:
        try:
            if resource_type == Resource.TOPIC:
                await _change_topic(broker, name, changed, validate_only)
            elif resource_type == Resource.BROKER:
                await _change_broker(broker, name, changed, validate_only)
            else:
                raise unsupported(resource_type)
        except Conflict:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
        if not validate_only:
            await broker.follow()


async def _change_topic(
    broker: Broker, name: str, changed: Callable[[Mapping[str, str]], Overrides], validate_only: bool
) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    topic = broker.metadata.topics.get(name)
    overrides = changed({} if topic is None else topic.config)
    broker.configs.check_topic(name, overrides)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if not validate_only:
        await broker.coordination.set_topic_config(name, overrides)


async def _change_broker(
    broker: Broker, name: str, changed: Callable[[Mapping[str, str]], Overrides], validate_only: bool
) -> None:
    if name:
        check_broker(broker, name)
    broker_id = broker.broker_id if name else None
    overrides = changed(broker.metadata.state.broker_configs.get(broker_id, {}))
    fixed = [key for key in overrides if key in BROKER_KEYS and not BROKER_KEYS[key].dynamic]
    if fixed:
        message = f"Cannot update these configs dynamically: Set({', '.join(fixed)})"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    broker.configs.check_broker(broker_id, overrides, broker.metadata.topics.values())
    if not validate_only:
        await broker.coordination.set_broker_config(broker_id, overrides)


def unsupported(resource_type: int) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
