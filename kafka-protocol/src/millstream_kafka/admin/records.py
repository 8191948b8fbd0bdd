"""Requests of administration and their results as plain records, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ..protocol.errors import ErrorCode
from ..topic_partition import TopicPartition

BROKERS_DEFAULT = -1
"""A count in CreateTopics."""


class ResourceType(IntEnum):
    """A type of resource that has a configuration, as the protocol numbers it."""

    TOPIC = 2
    BROKER = 4
    """With an empty name: all brokers."""


class ConfigSource(IntEnum):
    """Where a configuration value comes from, as DescribeConfigs numbers it."""

    UNKNOWN = -1
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigType(IntEnum):
    """The type of a configuration key, as DescribeConfigs numbers it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def name_of(cls, number: int) -> str:
        """Empty if the broker does not return the type."""
        return next((each.name for each in cls if each == number), "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's refusal for one topic, partition or group: Kafka's error name and the broker's message."""

    error: str
    message: str

    def __str__(self) -> str:
        return self.message or self.error

    @classmethod
    def of(cls, code: int, message: str | None = None) -> Refusal | None:
        """None for no error."""
        if code == ErrorCode.NONE:
            return None
        error = ErrorCode.of(code)
        return cls(error.name, message or error.message)


@dataclass(frozen=True, slots=True)
class BrokersState:
    """The live brokers with their racks, and the controller (-1: none)."""

    racks: Mapping[int, str | None]
    controller: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """``partitions``, ``replication_factor``: None takes the brokers' default."""

    name: str
    partitions: int | None
    replication_factor: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Keys to set on a resource, and keys to reset to the default."""

    set: Mapping[str, str]
    reset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress: until it ends, a partition's replicas are the old and the new ones."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


class OffsetAndMetadata(NamedTuple):
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``partitions``: none if the group is not one of consumers."""

    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """``state`` by Kafka's names: Empty, Stable, PreparingRebalance, CompletingRebalance, Dead (it does not exist)."""

    state: str
    members: tuple[MemberDescription, ...]
