"""Paths and data of access rules in the tree, as Kafka with ZooKeeper has them. Pure.

    /kafka-acl/Topic/orders                      {"version":1,"acls":[{"principal":"User:alice",
                                                  "permissionType":"Allow","operation":"Read","host":"*"}]}
    /kafka-acl-extended/prefixed/Topic/orders-   the same, for names that begin so
    /kafka-acl-changes/acl_changes_…   sequence  TOPIC:orders
    /kafka-acl-extended-changes/acl_changes_…    {"version":1,"resourceType":"TOPIC","name":"orders-",
                                                  "patternType":"PREFIXED"}

A name that no node may have, such as `team/a` of a group, is encoded: `%:team%2Fa`. Reading raises TreeError, naming
the path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

from millstream_kafka.acl import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)

from .tree import TreeError

LITERAL_CHANGES = "/kafka-acl-changes"
EXTENDED_CHANGES = "/kafka-acl-extended-changes"
TYPES = tuple(resource_type for resource_type in ResourceType if resource_type > ResourceType.ANY)
ROOTS = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
ALWAYS = (
    *(f"{root}/{resource_type.title}" for root in ROOTS.values() for resource_type in TYPES),
    LITERAL_CHANGES,
    EXTENDED_CHANGES,
)
"""Nodes that exist before any rule, as in Kafka."""

_ENCODED = "%:"
_UNUSABLE = re.compile(r"[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]|^\.\.?$|^%:")
"""Names that ZooKeeper refuses (beyond U+FFFF, too), and those that would be read as encoded."""

Entries = frozenset[AccessControlEntry]


def path_of(pattern: ResourcePattern) -> str:
    name = pattern.name
    if _UNUSABLE.search(name):
        name = _ENCODED + quote(name, safe="", errors="surrogatepass")
        name = name.replace(".", "%2E")
    return f"{ROOTS[pattern.pattern_type]}/{pattern.resource_type.title}/{name}"


def pattern_of(pattern_type: PatternType, resource_type: ResourceType, node: str) -> ResourcePattern:
    """The pattern of a node of that name."""
    if node.startswith(_ENCODED):
        node = unquote(node.removeprefix(_ENCODED))
    return ResourcePattern(resource_type, node, pattern_type)


def entries_json(entries: Iterable[AccessControlEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission_type.title,
            "operation": entry.operation.title,
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":")).encode()


def entries_from(path: str, data: bytes) -> Entries:
    try:
        return frozenset(
            AccessControlEntry(
                str(acl["principal"]),
                str(acl["host"]),
                AclOperation.titled(acl["operation"]),
                PermissionType.titled(acl["permissionType"]),
            )
            for acl in json.loads(data)["acls"]
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TreeError(f"{path} has no access rules that can be read: {error!r}: {data[:200]!r}") from None


def change_of(pattern: ResourcePattern) -> tuple[str, bytes]:
    """Path, without its number, and data of the note of a change."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{LITERAL_CHANGES}/acl_changes_", f"{pattern.resource_type.name}:{pattern.name}".encode()
    note = {
        "version": 1,
        "resourceType": pattern.resource_type.name,
        "name": pattern.name,
        "patternType": pattern.pattern_type.name,
    }
    return f"{EXTENDED_CHANGES}/acl_changes_", json.dumps(note, separators=(",", ":")).encode()


def changed_in(path: str, data: bytes) -> ResourcePattern:
    """The pattern whose rules a note says have changed."""
    try:
        if path.startswith(f"{LITERAL_CHANGES}/"):
            resource_type, _, name = data.decode().partition(":")
            return ResourcePattern(ResourceType[resource_type.upper()], name)
        note = json.loads(data)
        return ResourcePattern(
            ResourceType[note["resourceType"].upper()], note["name"], PatternType[note["patternType"].upper()]
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TreeError(f"{path} names no resource: {error!r}: {data[:200]!r}") from None
