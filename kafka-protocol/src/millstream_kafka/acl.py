"""Kafka's model of access control (KIP-11, KIP-290): resources, patterns, operations, and their numbers in requests.

A rule (ACL) is a `ResourcePattern` and an `AccessControlEntry`. The names with capitals (`TransactionalId`,
`DescribeConfigs`) are those of Kafka's tools and of the JSON in ZooKeeper.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Self

WILDCARD = "*"
"""Any resource of a type, as the name of a literal pattern; any host."""
ANY_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class _Named(IntEnum):
    @property
    def title(self) -> str:
        """`DescribeConfigs` for DESCRIBE_CONFIGS."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def titled(cls, title: str) -> Self:
        """Raises ValueError for an unknown name."""
        for member in cls:
            if member.title.lower() == title.lower():
                return member
        raise ValueError(f"{title!r} is none of {', '.join(member.title for member in cls)}")

    @classmethod
    def numbered(cls, number: int) -> Self:
        """The member of that number; UNKNOWN if there is none."""
        try:
            return cls(number)
        except ValueError:
            return cls(0)


class ResourceType(_Named):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Named):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(_Named):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class AccessControlEntry(NamedTuple):
    principal: str
    host: str
    operation: AclOperation
    permission_type: PermissionType


IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""The operations whose permission includes another one. A denial includes no other."""

OPERATIONS = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that exist on each type of resource."""
