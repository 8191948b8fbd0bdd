"""The access rules in the tree, and the notes that announce changes (`acl_nodes`).

A change compares and sets: it reads the rules of a pattern, and writes them with the version that it read, together
with a note. All brokers watch the notes. When a change returns, this broker's rules have it; the others follow within
moments.

Rules that cannot be read stop no broker. The previous ones stay in use; without previous ones, nobody may use the
resource, because the rules may be denials. Super users can replace them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from millstream_kafka.acl import (
    ANY_PRINCIPAL,
    WILDCARD,
    AccessControlEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..runtime.slices import cooperatively
from . import acl_nodes
from .acl_nodes import Entries
from .change_notes import ChangeNotes, Missed
from .stores import (
    BadVersionError,
    Create,
    Delete,
    MultiError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    Store,
    Unavailable,
    Watch,
)
from .tree import TreeError

NOBODY: Entries = frozenset(
    {AccessControlEntry(ANY_PRINCIPAL, WILDCARD, AclOperation.ALL, PermissionType.DENY)}
)
WRITTEN_AT_ONCE = 200

Change = Callable[[Entries], Entries]
"""The new rules of a pattern, from the stored ones."""

log = logging.getLogger(__name__)


class Acls:
    """`rules` has the patterns that have any."""

    def __init__(self, nodes: Store, noted: Watch) -> None:
        """`noted` is the watch for notes: then `read_notes` is due."""
        self.rules: dict[ResourcePattern, Entries] = {}
        self.on_changed: Callable[[ResourcePattern, Entries], None] = lambda pattern, entries: None
        self.on_loaded: Callable[[Mapping[ResourcePattern, Entries]], None] = lambda rules: None
        self._nodes = nodes
        self._noted = noted
        self._notes = [
            ChangeNotes(nodes, acl_nodes.LITERAL_CHANGES),
            ChangeNotes(nodes, acl_nodes.EXTENDED_CHANGES),
        ]
        self._one_at_a_time = asyncio.Lock()
        """Held from a read until its result is taken: so no older rules replace newer ones."""

    async def load(self) -> None:
        """Read everything. Raises Unavailable."""
        async with self._one_at_a_time:
            await self._load()

    async def _load(self) -> None:
        await self._nodes.ensure(*acl_nodes.ALWAYS)
        names = [await notes.names(self._noted) for notes in self._notes]
        folders = [
            (pattern_type, resource_type)
            for pattern_type in acl_nodes.ROOTS
            for resource_type in acl_nodes.TYPES
        ]
        paths = [
            f"{acl_nodes.ROOTS[pattern_type]}/{resource_type.title}"
            for pattern_type, resource_type in folders
        ]
        found = await self._nodes.children_of_all(paths)
        patterns = [
            acl_nodes.pattern_of(*folder, node)
            for folder, nodes in zip(folders, found, strict=True)
            for node in nodes or ()
        ]
        stored = await self._nodes.get_all(map(acl_nodes.path_of, patterns))
        rules = {}
        async for pattern, node in cooperatively(zip(patterns, stored, strict=True)):
            if entries := self._usable(pattern, node):
                rules[pattern] = entries
        self.rules = rules
        for notes, of_notes in zip(self._notes, names, strict=True):
            notes.are_read(of_notes, all_of_them=True)
        self.on_loaded(self.rules)

    async def read_notes(self) -> None:
        """Read the rules that new notes name, and watch for more notes. Raises Unavailable."""
        async with self._one_at_a_time:
            names = [await notes.names(self._noted) for notes in self._notes]
            patterns: dict[ResourcePattern, None] = {}
            try:
                for notes, of_notes in zip(self._notes, names, strict=True):
                    async for path, data in cooperatively(await notes.unread(of_notes)):
                        try:
                            patterns[acl_nodes.changed_in(path, data)] = None
                        except TreeError as error:
                            log.error("%s", error)
            except Missed:
                log.info("notes of access rules were removed before they were read: reading all rules")
                await self._load()
                return
            known = [pattern for pattern in patterns if pattern.pattern_type in acl_nodes.ROOTS]
            stored = await self._nodes.get_all(map(acl_nodes.path_of, known))
            async for pattern, node in cooperatively(zip(known, stored, strict=True)):
                self._take(pattern, self._usable(pattern, node))
            for notes, of_notes in zip(self._notes, names, strict=True):
                notes.are_read(of_notes)
                await notes.remove_old(of_notes)

    async def change(self, changes: Mapping[ResourcePattern, Change]) -> dict[ResourcePattern, ApiError]:
        """Change the rules of patterns, each by itself; returns the errors of those that failed.

        A change is called again for each attempt, so it adds or removes rules, and keeps others. Raises Unavailable;
        then some may be written: make the same changes again.
        """
        failed: dict[ResourcePattern, ApiError] = {}
        async with self._one_at_a_time:
            waiting = list(changes)
            while waiting:
                now, waiting = waiting[:WRITTEN_AT_ONCE], waiting[WRITTEN_AT_ONCE:]
                waiting += await self._attempt({pattern: changes[pattern] for pattern in now}, failed)
        return failed

    async def _attempt(
        self, changes: Mapping[ResourcePattern, Change], failed: dict[ResourcePattern, ApiError]
    ) -> list[ResourcePattern]:
        """One attempt; returns the patterns whose rules were changed by somebody else meanwhile."""
        stored = await self._nodes.get_all(map(acl_nodes.path_of, changes))
        written: list[tuple[ResourcePattern, Entries]] = []
        multis: list[list[Operation]] = []
        async for (pattern, change), node in cooperatively(zip(changes.items(), stored, strict=True)):
            before = _stored(pattern, node)
            after = change(before)
            operation = _operation(pattern, node, before, after)
            note = Create(*acl_nodes.change_of(pattern), sequence=True)
            if operation is None:
                self._take(pattern, self._usable(pattern, node))
            elif (
                not isinstance(operation, Delete)
                and (size := _size(operation, note)) > self._nodes.max_node_bytes
            ):
                failed[pattern] = self._too_large(pattern, size)
            else:
                written.append((pattern, after))
                multis.append([operation, note])
        again = []
        results = await self._nodes.multi_all(multis)
        async for (pattern, after), result in cooperatively(zip(written, results, strict=True)):
            if isinstance(result, Unavailable):
                raise result
            if isinstance(result, MultiError):
                if not isinstance(result.error, NodeExistsError | NoNodeError | BadVersionError):
                    raise result.error
                again.append(pattern)
            else:
                self._take(pattern, after)
        return again

    def _too_large(self, pattern: ResourcePattern, size: int) -> ApiError:
        return ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The rules of {pattern.resource_type.title} {pattern.name} would take {size} bytes in coordination:"
            f" {self._nodes.max_node_bytes} are allowed. Use fewer principals and hosts, or {WILDCARD}.",
        )

    def _take(self, pattern: ResourcePattern, entries: Entries) -> None:
        if entries == self.rules.get(pattern, frozenset()):
            return
        if entries:
            self.rules[pattern] = entries
        else:
            del self.rules[pattern]
        self.on_changed(pattern, entries)

    def _usable(self, pattern: ResourcePattern, node: Node | None) -> Entries:
        """The stored rules; those known, or none for anybody, if they cannot be read."""
        if node is None:
            return frozenset()
        try:
            return acl_nodes.entries_from(acl_nodes.path_of(pattern), node.data)
        except TreeError as error:
            known = self.rules.get(pattern)
            log.error(
                "%s: %s", error, "nobody may use it" if known is None else "the known rules stay in use"
            )
            return NOBODY if known is None else known


def _stored(pattern: ResourcePattern, node: Node | None) -> Entries:
    """The stored rules, for a change; empty if they cannot be read, so that a write repairs them."""
    try:
        return frozenset() if node is None else acl_nodes.entries_from(acl_nodes.path_of(pattern), node.data)
    except TreeError:
        return frozenset()


def _size(*operations: Create | Set) -> int:
    """Bytes of a multi, in which the store takes no more than in a node."""
    return sum(len(each.path.encode()) + len(each.data) for each in operations)


def _operation(
    pattern: ResourcePattern, node: Node | None, before: Entries, after: Iterable[AccessControlEntry]
) -> Create | Set | Delete | None:
    """The write of the new rules; None if there is nothing to write."""
    path = acl_nodes.path_of(pattern)
    if after == before:
        return None
    if not after:
        return None if node is None else Delete(path, node.version)
    data = acl_nodes.entries_json(after)
    return Create(path, data) if node is None else Set(path, data, node.version)
