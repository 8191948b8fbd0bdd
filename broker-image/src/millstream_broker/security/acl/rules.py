"""Access rules, indexed for decisions as Kafka's StandardAuthorizer makes them. Pure.

The rules of a resource are those whose pattern is its name, a prefix of its name (PREFIXED), or `*`. Of these, the
rules for the principal (or `User:*`) from its host (or `*`) count: one that denies the operation, or All, outweighs any
that allows it. Permission to read, write, delete or alter includes Describe, and AlterConfigs includes DescribeConfigs;
a denial includes no other operation.

A decision takes one look-up for each length that prefixes of that type have, however many rules there are.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from millstream_kafka.acl import (
    ANY_PRINCIPAL,
    IMPLIED_BY,
    WILDCARD,
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)

ALL = AclOperation.ALL
HARDCODED = "hardcode"
"""A name that Kafka tries before it searches the rules of a whole type."""

Entries = frozenset[AccessControlEntry]
_Rule = tuple[str, AclOperation]
"""Host and operation."""


class Decision(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    """By a rule, or because the resource has rules and none of them allows it."""
    NO_ACL = "the resource has no rule"


class _Pattern:
    """The rules of one pattern, by principal."""

    __slots__ = ("allow", "deny", "entries")

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.allow: dict[str, list[_Rule]] = {}
        self.deny: dict[str, list[_Rule]] = {}
        for entry in entries:
            rules = self.allow if entry.permission_type is PermissionType.ALLOW else self.deny
            rules.setdefault(entry.principal, []).append((canonical_host(entry.host), entry.operation))

    def denies(self, principal: str, host: str, operation: AclOperation) -> bool:
        return bool(self.deny) and (
            _matches(self.deny.get(principal), host, (operation, ALL))
            or _matches(self.deny.get(ANY_PRINCIPAL), host, (operation, ALL))
        )

    def allows(self, principal: str, host: str, operation: AclOperation, *, implied: bool = True) -> bool:
        operations = {operation, ALL, *(IMPLIED_BY.get(operation, ()) if implied else ())}
        return _matches(self.allow.get(principal), host, operations) or _matches(
            self.allow.get(ANY_PRINCIPAL), host, operations
        )


def _matches(rules: list[_Rule] | None, host: str, operations: Iterable[AclOperation]) -> bool:
    return rules is not None and any(
        operation in operations and rule_host in (WILDCARD, host) for rule_host, operation in rules
    )


class _OfType:
    """The rules of one type of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Pattern] = {}
        self.prefixed: dict[str, _Pattern] = {}
        self.lengths: Counter[int] = Counter()
        """How many prefixes have each length."""

    def of(self, name: str) -> Iterator[_Pattern]:
        """The patterns that match a name."""
        for key in {name, WILDCARD}:
            if (found := self.literal.get(key)) is not None:
                yield found
        for length in self.lengths:
            if length <= len(name) and (found := self.prefixed.get(name[:length])) is not None:
                yield found


class Rules:
    """All access rules, for any number of resources."""

    def __init__(self) -> None:
        self._types = {resource_type: _OfType() for resource_type in ResourceType}
        self.version = 0
        """Counts changes, for whoever keeps decisions."""

    def replace(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """Replace the rules of one pattern; without entries, it has none."""
        of_type, given = self._types[pattern.resource_type], frozenset(entries)
        is_prefix = pattern.pattern_type is PatternType.PREFIXED
        patterns = of_type.prefixed if is_prefix else of_type.literal
        if is_prefix and bool(given) != (pattern.name in patterns):
            length = len(pattern.name)
            of_type.lengths[length] += 1 if given else -1
            if not of_type.lengths[length]:
                del of_type.lengths[length]
        if given:
            patterns[pattern.name] = _Pattern(given)
        else:
            patterns.pop(pattern.name, None)

    def replace_all(self, rules: Mapping[ResourcePattern, Iterable[AccessControlEntry]]) -> bool:
        """Replace the rules of all patterns; returns whether any has changed. Others cost little."""
        known = dict(self)
        gone = [pattern for pattern in known if pattern not in rules]
        changed = [pattern for pattern, entries in rules.items() if known.get(pattern) != frozenset(entries)]
        for pattern in gone + changed:
            self.replace(pattern, rules.get(pattern, ()))
        return bool(gone or changed)

    def __iter__(self) -> Iterator[tuple[ResourcePattern, Entries]]:
        for resource_type, of_type in self._types.items():
            for name, pattern in of_type.literal.items():
                yield ResourcePattern(resource_type, name), pattern.entries
            for name, pattern in of_type.prefixed.items():
                yield ResourcePattern(resource_type, name, PatternType.PREFIXED), pattern.entries

    def entries_of(self, resource_type: ResourceType) -> list[AccessControlEntry]:
        """The rules of all resources of a type."""
        of_type = self._types[resource_type]
        patterns = (*of_type.literal.values(), *of_type.prefixed.values())
        return [entry for pattern in patterns for entry in pattern.entries]

    def decide(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> Decision:
        found = list(self._types[resource_type].of(name))
        if any(pattern.denies(principal, host, operation) for pattern in found):
            return Decision.DENIED
        if any(pattern.allows(principal, host, operation) for pattern in found):
            return Decision.ALLOWED
        return Decision.DENIED if found else Decision.NO_ACL

    def allows_some(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether rules allow the operation on any resource of a type: on one pattern that is not denied as a whole.

        As in Kafka (KIP-679), no operation implies another one here, and a denial counts if its prefix, or the same
        literal pattern, contains the pattern that is allowed.
        """
        of_type = self._types[resource_type]
        every = of_type.literal.get(WILDCARD)
        if every is not None and every.denies(principal, host, operation):
            return False
        if every is not None and every.allows(principal, host, operation, implied=False):
            return True
        for patterns, is_literal in ((of_type.literal, True), (of_type.prefixed, False)):
            for name, pattern in patterns.items():
                if not pattern.allows(principal, host, operation, implied=False):
                    continue
                if is_literal and pattern.denies(principal, host, operation):
                    continue
                if not self._denied_by_prefix(of_type, principal, host, operation, name):
                    return True
        return False

    def _denied_by_prefix(
        self, of_type: _OfType, principal: str, host: str, operation: AclOperation, name: str
    ) -> bool:
        return any(
            prefix.denies(principal, host, operation)
            for length in of_type.lengths
            if length <= len(name) and (prefix := of_type.prefixed.get(name[:length])) is not None
        )


def canonical_host(host: str) -> str:
    """An address in the form that sessions have: Java writes IPv6 addresses without `::`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
