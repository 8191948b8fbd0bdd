"""Configuration stored by brokers: of a topic, of a broker, of all brokers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors, outcomes, results
from millstream.errors import BadInput, Failed, MillstreamError

TOPIC: Final = "topic"
BROKER: Final = "broker"
_TYPES = {TOPIC: ResourceType.TOPIC, BROKER: ResourceType.BROKER}
_OWN = {TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG, BROKER: ConfigSource.DYNAMIC_BROKER_CONFIG}


@dataclass(frozen=True, slots=True)
class Resource:
    """An object with configuration: a topic by its name, or a broker by its id."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Parse "topic/NAME" or "broker/ID"."""
        kind, _, name = text.partition("/")
        if kind not in _TYPES or not name or (kind == BROKER and not re.fullmatch(r"[0-9]+", name)):
            raise BadInput(f'resource: "{text}" is not allowed', "write topic/NAME or broker/ID")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Setting:
    """A key's value (None if it has none) and its source, in Kafka's words (DEFAULT_CONFIG, …)."""

    key: str
    value: str | None
    source: str
    own: bool
    """Whether it is set on the resource itself."""


def describe_configs(cluster: Cluster, resource: Resource) -> list[Setting]:
    """All settings by key; UnknownTopic, BadInput for an unknown broker."""
    _require(cluster, resource)
    asked = cluster.admin.describe_configs([_asked(resource)], request_timeout=REQUEST_TIMEOUT_S)
    (entries,) = results(asked).values()
    own = _OWN[resource.kind]
    return [
        Setting(key, entry.value, ConfigSource(entry.source).name, entry.source == own.value)
        for key, entry in sorted(entries.items())
    ]


def describe_brokers(cluster: Cluster) -> list[list[Setting]]:
    """The settings of each broker; none if the brokers do not show them to this user."""
    try:
        return [
            describe_configs(cluster, Resource(BROKER, str(node)))
            for node in sorted(cluster.metadata().brokers)
        ]
    except MillstreamError:
        return []


def own_configs(cluster: Cluster, resource: Resource) -> dict[str, str]:
    """Settings of the resource itself, without defaults."""
    return {
        setting.key: setting.value or "" for setting in describe_configs(cluster, resource) if setting.own
    }


def alter_configs(
    cluster: Cluster,
    resource: Resource,
    set_configs: Mapping[str, str],
    delete_configs: Sequence[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set keys, and reset others to their default, all or none of them. Failed with the brokers' reason."""
    check_values(set_configs)
    _require(cluster, resource)
    if both := sorted(set(set_configs).intersection(delete_configs)):
        raise BadInput(f"{both[0]} is both set and reset", "choose one")
    wanted = _asked(resource)
    for key, value in set_configs.items():
        wanted.add_incremental_config(_change(key, value, AlterConfigOpType.SET))
    for key in delete_configs:
        wanted.add_incremental_config(_change(key, "", AlterConfigOpType.DELETE))
    with kafka_errors():
        asked = cluster.admin.incremental_alter_configs(
            [wanted], request_timeout=REQUEST_TIMEOUT_S, validate_only=validate_only
        )
    (why,) = outcomes(asked).values()
    if why:
        raise Failed(f"the configuration of {resource} cannot be changed", why)


def check_values(configs: Mapping[str, str]) -> None:
    """BadInput for keys and values other than text, because librdkafka takes no others."""
    for key, value in configs.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadInput(f"{key}: {value!r} is not allowed", "write text")


def _require(cluster: Cluster, resource: Resource) -> None:
    if resource.kind == TOPIC:
        cluster.partitions(resource.name)
        return
    there = sorted(cluster.metadata().brokers)
    if resource.name not in map(str, there):
        raise BadInput(
            f"there is no broker {resource.name}", f"the brokers that are up: {', '.join(map(str, there))}"
        )


def _asked(resource: Resource) -> ConfigResource:
    return ConfigResource(_TYPES[resource.kind], resource.name)


def _change(key: str, value: str, operation: Any) -> ConfigEntry:
    return ConfigEntry(key, value, incremental_operation=operation)
