"""The rights on configuration: on a topic or group itself, and on the cluster for brokers and all other resources."""

from __future__ import annotations

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType

from ..session import ClientSession
from .authorizer import Authorizer
from .rights import Right

_TYPES = {2: ResourceType.TOPIC, 32: ResourceType.GROUP}
"""Resource types of configuration that have rights of their own, by Kafka's number."""
_ON_CLUSTER = (4, 8, 16)
"""Brokers, their loggers, and metrics of clients."""


def rights_on_configuration(operation: AclOperation) -> list[Right]:
    return [
        Right(operation, ResourceType.TOPIC, "each topic"),
        Right(operation, ResourceType.CLUSTER, "the cluster, for brokers"),
        Right(operation, ResourceType.GROUP, "each group"),
    ]


def check_configuration(
    authorizer: Authorizer, session: ClientSession, operation: AclOperation, resource_type: int, name: str
) -> None:
    """Raises ApiError unless the operation is allowed. Types that nobody knows are refused elsewhere."""
    if resource_type in _TYPES:
        authorizer.check(session, operation, _TYPES[resource_type], name)
    elif resource_type in _ON_CLUSTER:
        authorizer.check(session, operation, ResourceType.CLUSTER, CLUSTER_NAME)
