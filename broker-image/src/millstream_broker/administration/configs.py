"""Configuration at run time, for DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

A resource is a topic, a broker (its number), or all brokers (an empty name). Its overrides are replaced as a whole,
after they have been validated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..config.config import BrokerConfig, ConfigSource, Entry
from ..config.config_keys import BROKER_KEYS
from ..config.config_types import ConfigError
from ..config.listener_keys import broker_key, plain_name
from ..coordination import Conflict
from ..coordination.coordination import Coordination
from ..metadata.cache import check_topic_name
from ..metadata.effective_configs import EffectiveConfigs
from ..replication.replicas import Replicas
from ..topic_rules.mirrored_topics import check_change

if TYPE_CHECKING:
    from ..security.tls.certificates import Certificates


class Resource(IntEnum):
    """Kafka's ConfigResource types."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


WITHOUT_CONFIGURATION = {Resource.BROKER_LOGGER, Resource.CLIENT_METRICS, Resource.GROUP}
"""Resource types that have configuration in Kafka but not here."""

Overrides = dict[str, str]


class ConfigAdministrator:
    """Reads and changes configuration for one broker's clients."""

    def __init__(
        self,
        config: BrokerConfig,
        configs: EffectiveConfigs,
        replicas: Replicas,
        coordination: Coordination,
        certificates: Certificates | None = None,
    ) -> None:
        """`certificates` are those of listeners, which settings may replace."""
        self._config = config
        self._configs = configs
        self._replicas = replicas
        self._coordination = coordination
        self._certificates = certificates

    def describe(self, resource_type: int, name: str) -> list[Entry]:
        """The values of a resource, and their sources. Raises ApiError."""
        if resource_type == Resource.TOPIC:
            check_topic_name(name)
            return self._configs.of(self._replicas.metadata.topic(name)).describe()
        if resource_type == Resource.BROKER:
            if name:
                self.check_broker(name, "Broker", " or empty string")
                return self._config.describe()
            given = self._replicas.metadata.state.broker_configs.get(None, {})
            source = ConfigSource.DYNAMIC_CLUSTER
            return [
                Entry(key, shown, source, ((name, shown, source),))
                for name, value in given.items()
                if (key := broker_key(name)) is not None
                for shown in (None if key.is_sensitive else value,)
            ]
        if resource_type == Resource.BROKER_LOGGER:
            self.check_broker(name, "Broker")
        if resource_type in WITHOUT_CONFIGURATION:
            return []
        raise unsupported(resource_type)

    def check_broker(self, name: str, what: str = "Node", alternative: str = "") -> None:
        """Raises ApiError unless this broker has that number."""
        if not re.fullmatch(r"[+-]?[0-9]+", name):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}")
        if int(name) != self._replicas.broker_id:
            message = (
                f"Unexpected broker id, expected {self._replicas.broker_id}{alternative}, but received {name}"
            )
            raise ApiError(ErrorCode.INVALID_REQUEST, message)

    async def change(
        self,
        resource_type: int,
        name: str,
        given: Sequence[tuple[str, str | None]],
        changed: Callable[[Mapping[str, str]], Overrides],
        *,
        validate_only: bool,
    ) -> None:
        """Replace a resource's overrides by the result of `changed`; raises ApiError.

        `given` are the keys of the request, with the values that must not be null.
        """
        if unset := [key for key, value in given if value is None]:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(unset)}")
        if len({key for key, _ in given}) < len(given):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        async with self._configs.changing:
            try:
                if resource_type == Resource.TOPIC:
                    await self._change_topic(name, changed, {key for key, _ in given}, validate_only)
                elif resource_type == Resource.BROKER:
                    await self._change_broker(name, changed, validate_only)
                else:
                    raise unsupported(resource_type)
            except Conflict:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
            if not validate_only:
                await self._replicas.caught_up()
                if resource_type == Resource.BROKER and self._certificates is not None:
                    await self._certificates.reload()

    async def _change_topic(
        self,
        name: str,
        changed: Callable[[Mapping[str, str]], Overrides],
        named: Collection[str],
        validate_only: bool,
    ) -> None:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        topic = self._replicas.metadata.topics.get(name)
        overrides = changed({} if topic is None else topic.config)
        self._configs.check_topic(name, overrides)
        check_change({} if topic is None else topic.config, overrides, named)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if not validate_only:
            await self._coordination.set_topic_config(name, topic.topic_id, overrides, named)

    async def _change_broker(
        self, name: str, changed: Callable[[Mapping[str, str]], Overrides], validate_only: bool
    ) -> None:
        if name:
            self.check_broker(name)
        broker_id = self._replicas.broker_id if name else None
        before = self._replicas.metadata.state.broker_configs.get(broker_id, {})
        overrides = changed(before)
        keys = [(name, broker_key(name)) for name in overrides]
        fixed = [name for name, key in keys if key is not None and not key.dynamic]
        if fixed:
            message = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        of_one_broker = [
            name
            for name, key in keys
            if key is not None and BROKER_KEYS[plain_name(name)].dynamic_of_listener_only
        ]
        if of_one_broker and broker_id is None:
            message = f"Cannot update these configs at default cluster level: {','.join(of_one_broker)}"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        secrets = [name for name, key in keys if key is not None and key.is_sensitive and name not in before]
        if secrets:
            message = (
                f"{', '.join(secrets)}: settings that change at run time are stored unencrypted, so secrets belong in"
                " the broker's file, or in a file that it names"
            )
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        self._configs.check_broker(broker_id, overrides, self._replicas.metadata.topics.values())
        if self._certificates is not None:
            try:
                await asyncio.to_thread(self._certificates.check, self._configs.with_own(overrides))
            except ConfigError as error:
                raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if not validate_only:
            await self._coordination.set_broker_config(broker_id, overrides)


def unsupported(resource_type: int) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
