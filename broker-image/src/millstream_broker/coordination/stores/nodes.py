"""The nodes of a tree in memory, with their watches, and multis on them. Without I/O: a store makes changes durable
before the nodes take them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from . import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    StoreError,
    Watch,
)


class Stored(NamedTuple):
    """A node, and the number of sequence nodes created below it."""

    node: Node
    numbered: int = 0


Changes = Mapping[str, Stored | None]
"""Nodes by path; None means deleted."""


class Nodes:
    """The tree as of its last transaction, `zxid`."""

    def __init__(self) -> None:
        self.zxid = 0
        self.stored: dict[str, Stored] = {"/": Stored(Node(b"", 0, 0, 0, 0))}
        """By path."""
        self._below: dict[str, dict[str, None]] = defaultdict(dict)
        """The names of the children of each node."""
        self._watches: dict[str, dict[Watch, None]] = defaultdict(dict)
        self._child_watches: dict[str, dict[Watch, None]] = defaultdict(dict)

    def __contains__(self, path: str) -> bool:
        return path in self.stored

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """See `Store.get`."""
        if watch is not None:
            self._watches[path][watch] = None
        stored = self.stored.get(path)
        return None if stored is None else stored.node

    def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """See `Store.children`."""
        if path not in self.stored:
            return None
        if watch is not None:
            self._child_watches[path][watch] = None
        return list(self.names(path))

    def names(self, path: str) -> Collection[str]:
        """The names of the children; empty if the node does not exist."""
        return self._below.get(path, {})

    def forget_watches(self) -> None:
        self._watches.clear()
        self._child_watches.clear()

    def take(self, zxid: int, changes: Changes, *, notify: bool = True) -> None:
        """Apply the changes of the transactions up to `zxid`; `tell`: and call watches, soon."""
        self.zxid = zxid
        for path, stored in changes.items():
            above, _, name = path.rpartition("/")
            above = above or "/"
            before = self.stored.get(path)
            if stored is None:
                if before is None:  # created and deleted between two writes
                    continue
                del self.stored[path]
                self._below[above].pop(name, None)
                self._below.pop(path, None)
            else:
                self.stored[path] = stored
                self._below[above][name] = None
            if notify:
                self._notify(self._watches, path)
                if stored is None:
                    self._notify(self._child_watches, path)
                if stored is None or before is None or before.node.created != stored.node.created:
                    self._notify(self._child_watches, above)

    def _notify(self, watches: dict[str, dict[Watch, None]], path: str) -> None:
        for watch in watches.pop(path, ()):
            asyncio.get_running_loop().call_soon(watch, path)


class GroupCommit:
    """Applies multis one after the other, to be written together, and leaves the nodes they start from unchanged."""

    def __init__(self, nodes: Nodes, now_ms: int) -> None:
        self.changes: dict[str, Stored | None] = {}
        self.zxid = nodes.zxid
        self._nodes = nodes
        self._now_ms = now_ms
        self._session = 0
        self._more: dict[str, int] = defaultdict(int)
        """Number of additional nodes below a path, compared with `_nodes`."""

    def multi(self, operations: Sequence[Operation], session: int) -> list[Any]:
        """See `Store.multi`; `session` owns its ephemeral nodes. Raises MultiError, with nothing changed."""
        self._session = session
        before: dict[str, tuple[bool, Stored | None]] = {}
        more: dict[str, int] = defaultdict(int)
        results = []
        is_change = any(not isinstance(operation, Check) for operation in operations)
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation, before, more))
            except StoreError as error:
                for path, (was_changed, stored) in before.items():
                    if was_changed:
                        self.changes[path] = stored
                    else:
                        del self.changes[path]
                for path, count in more.items():
                    self._more[path] -= count
                raise MultiError(index, error) from None
        self.zxid += is_change
        return results

    def _apply(
        self, operation: Operation, before: dict[str, tuple[bool, Stored | None]], more: dict[str, int]
    ) -> Any:
        def put(path: str, stored: Stored | None) -> None:
            before.setdefault(path, (path in self.changes, self.changes.get(path)))
            self.changes[path] = stored

        def count(path: str, by: int) -> None:
            self._more[path] += by
            more[path] += by

        if isinstance(operation, Create):
            above = operation.path.rpartition("/")[0] or "/"
            parent, path = self._get(above), operation.path
            if parent is None:
                raise NoNodeError(above)
            if operation.sequence:
                path = f"{path}{parent.numbered:010}"
                put(above, parent._replace(numbered=parent.numbered + 1))
            if self._get(path) is not None:
                raise NodeExistsError(path)
            owner = self._session if operation.ephemeral else 0
            put(path, Stored(Node(operation.data, 0, self.zxid + 1, owner, self._now_ms)))
            count(above, 1)
            return path
        stored = self._get(operation.path)
        if stored is None:
            raise NoNodeError(operation.path)
        if operation.version not in (-1, stored.node.version):
            raise BadVersionError(operation.path)
        if isinstance(operation, Set):
            version = stored.node.version + 1
            put(
                operation.path,
                stored._replace(node=stored.node._replace(data=operation.data, version=version)),
            )
            return version
        if isinstance(operation, Delete):
            if len(self._nodes.names(operation.path)) + self._more[operation.path] > 0:
                raise NotEmptyError(operation.path)
            put(operation.path, None)
            count(operation.path.rpartition("/")[0] or "/", -1)
        return None

    def _get(self, path: str) -> Stored | None:
        return self.changes[path] if path in self.changes else self._nodes.stored.get(path)
