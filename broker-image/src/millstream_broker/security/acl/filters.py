"""Filters of access rules, as in DescribeAcls and DeleteAcls (KIP-140, KIP-290). Pure.

The pattern type of a filter is that of the rules, ANY, or MATCH: the rules that concern a resource of that name.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from millstream_kafka.acl import (
    WILDCARD,
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode


class RequestedFilter(Protocol):
    """A filter in a request of DescribeAcls or DeleteAcls."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def fields_of(
    requested: RequestedFilter,
) -> tuple[int, str | None, int, str | None, str | None, int, int]:
    """In the order of `AclFilter`."""
    return (
        requested.resource_type_filter,
        requested.resource_name_filter,
        requested.pattern_type_filter,
        requested.principal_filter,
        requested.host_filter,
        requested.operation,
        requested.permission_type,
    )


class AclFilter(NamedTuple):
    """None and ANY match everything."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: PermissionType

    @classmethod
    def of(cls, requested: RequestedFilter) -> AclFilter:
        """From the numbers of a request. Raises ApiError for unknown ones."""
        resource_type, name, pattern_type, principal, host, operation, permission_type = fields_of(requested)
        found = cls(
            ResourceType.numbered(resource_type),
            name,
            PatternType.numbered(pattern_type),
            principal,
            host,
            AclOperation.numbered(operation),
            PermissionType.numbered(permission_type),
        )
        for field, given in (
            ("resource_type", resource_type),
            ("pattern_type", pattern_type),
            ("operation", operation),
            ("permission_type", permission_type),
        ):
            if not getattr(found, field):
                message = f"{field.replace('_', ' ')} {given} of the filter is unknown: 1 means any"
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
        return found

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name == WILDCARD

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission_type in (PermissionType.ANY, entry.permission_type)
        )
