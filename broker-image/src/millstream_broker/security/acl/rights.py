"""What the requests of an API need to be allowed; handlers name it when they are registered.

A right with `field` is for the request as a whole, and checked before its handler runs: on the group in that field of
the request, or, if it is empty, on the cluster. The handler itself checks the others, for each topic, group or other
resource in the request. docs/reference/authorization.md lists all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType

from ..session import ClientSession
from .authorizer import REFUSALS, Authorizer


class Right(NamedTuple):
    operation: AclOperation
    resource_type: ResourceType
    of: str
    """Which resources, in words."""
    field: str | None = None
    without: str = ""
    """What a client without the right gets, in words; by default, the error of the type of resource."""

    @property
    def refusal(self) -> str:
        return self.without or REFUSALS[self.resource_type].name

    def check(self, authorizer: Authorizer, session: ClientSession, request: Any) -> None:
        """Check a right for the whole request. Raises ApiError."""
        name = getattr(request, self.field) if self.field else CLUSTER_NAME
        authorizer.check(session, self.operation, self.resource_type, name)


def on_cluster(operation: AclOperation) -> Right:
    """The request as a whole needs the operation on the cluster."""
    return Right(operation, ResourceType.CLUSTER, "the cluster", "")


def on_group(operation: AclOperation) -> Right:
    """The request as a whole needs the operation on its group."""
    return Right(operation, ResourceType.GROUP, "the group", "group_id")
