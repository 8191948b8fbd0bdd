"""What an administrative request changes, and how that ended, for the audit log. Pure.

Handlers say what their requests change (`Changes`), without values of configuration, since these may be passwords, and
without salts and salted passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import Struct

MOST_NAMED = 20
"""Resources and failures that a line names."""
MOST_VISITED = 2000
"""Parts of a response that are searched for failures."""
_CONFIG_TYPES = {2: "Topic", 4: "Broker", 8: "BrokerLogger", 16: "ClientMetrics", 32: "Group"}


class Changed(NamedTuple):
    """A resource that a request names; `detail` says what happens to it."""

    resource_type: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.resource_type} {self.name}{': ' if self.detail else ''}{self.detail}"


Changes = Callable[[Any], Iterator[Changed]]
"""The resources that a request names."""


def changed_topics(request: Any) -> Iterator[Changed]:
    for topic in request.topics:
        yield Changed("Topic", topic.name)


def changed_configs(request: Any) -> Iterator[Changed]:
    """With the names of the keys."""
    for resource in request.resources:
        kind = _CONFIG_TYPES.get(resource.resource_type, str(resource.resource_type))
        keys = ", ".join(entry.name[:100] for entry in resource.configs[:MOST_NAMED])
        yield Changed(kind, resource.resource_name, keys)


def changed_rule(
    resource_type: int,
    name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> Changed:
    """An access rule, or a filter of rules."""
    pattern, allowed = PatternType.numbered(pattern_type).title, PermissionType.numbered(permission).title
    to, start = (principal or "any principal")[:100], (host or "any host")[:50]
    detail = f"{pattern}, {allowed} {AclOperation.numbered(operation).title} to {to} from {start}"
    return Changed(ResourceType.numbered(resource_type).title, (name or "any")[:100], detail)


def described(changes: Changes, request: Any) -> dict[str, object]:
    """The fields of a line: the resources that the request names, the first of them."""
    named = list(islice(changes(request), MOST_NAMED + 1))
    fields: dict[str, object] = {"resources": [str(each) for each in named[:MOST_NAMED]]}
    if len(named) > MOST_NAMED:
        fields["more_resources"] = True
    if getattr(request, "validate_only", False):
        fields["validate_only"] = True
    return fields


def failures(response: Struct) -> dict[str, list[str]]:
    """The names of what failed, by error."""
    found: dict[str, list[str]] = {}
    for code, name in islice(_errors(response, "", [MOST_VISITED]), MOST_NAMED):
        found.setdefault(code, []).append(name)
    return found


def _errors(part: Any, within: str, left: list[int]) -> Iterator[tuple[str, str]]:
    """The errors of a response and of its parts, with the name of the part."""
    left[0] -= 1
    if left[0] < 0:
        return
    code = getattr(part, "error_code", 0)
    named = [getattr(part, field) for field, kind in part.FIELDS if not kind.is_array and field in _NAMING]
    name = " ".join([within, *(str(each) for each in named if each is not None)]).strip()
    if code:
        yield ErrorCode.of(code).name, name
    for field, kind in part.FIELDS:
        if kind.is_array and kind.struct is not None:
            for each in getattr(part, field) or ():
                yield from _errors(each, name, left)


_NAMING = {
    *("name", "topic", "topic_id", "user", "group_id", "resource_name", "folder"),
    *("partition_index", "partition_id", "index", "entity_type", "entity_name"),
}
"""Fields that name a part of a response."""
