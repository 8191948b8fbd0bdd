"""Stores of the cluster's tree of nodes: their common interface, with ZooKeeper's rules.

`zookeeper`: an ensemble, for a cluster of several brokers. `file`: a file in the first log directory, for a single
broker. The layers above work on either, without knowing which. `nodes`: the rules, for a tree in memory.

A node has data and a version, which each change of the data raises. An *ephemeral* node disappears with the session
that created it. A multi happens as a whole or not at all. A read with `watch=` sets a watch, which is called once, on
the loop, with the path. Watches are silently lost with the connection: on every `CONNECTED`, callers read everything
again, with new watches.

A failed call raises a StoreError or Unavailable. **Unavailable says nothing about a write**: it may have happened.
A writer reads back before it writes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from millstream_kafka.protocol.errors import ErrorCode

from .. import CoordinationError

Watch = Callable[[str], None]


class Unavailable(CoordinationError):
    """The store did not respond in time; a write may or may not have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.REQUEST_TIMED_OUT)


class NotAllowed(CoordinationError):
    """The store does not let this broker do it. It says nothing about the nodes: they may exist, or not."""


class StoreError(Exception):
    """The store refuses an operation; the message is the path, if known."""


class NoNodeError(StoreError):
    """The node, or the parent of the node to create, does not exist."""


class NodeExistsError(StoreError):
    pass


class BadVersionError(StoreError):
    """The node has another version than expected."""


class NotEmptyError(StoreError):
    """The node to delete has children."""


class MultiError(Exception):
    """A multi that did nothing: the operation at `index` failed with `error`."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"operation {index}: {error!r}")
        self.index = index
        self.error = error


class State(Enum):
    """State of the connection: SUSPENDED without one, while the session may live on; LOST when the session is over."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Node(NamedTuple):
    """A node as read: `created` is its creating transaction (czxid), `owner` the session of an ephemeral one."""

    data: bytes
    version: int
    created: int
    owner: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    """With `sequence`, the path gets a suffix: a number of ten digits, larger than earlier ones."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """`version` -1: any version."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


Operation = Create | Set | Delete | Check


class Store(Protocol):
    """All calls are made on the loop; str() gives its location, for messages. Times are in seconds."""

    timeout: float
    """How long a session outlives its process."""
    max_node_bytes: int
    """The largest data of a node."""
    on_state: Callable[[State, bool], None]
    """Called with each state, and whether the session is new, that is, without the ephemeral nodes."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def session_id(self) -> int:
        """The newest session's id; nodes that it owns are ours."""

    def start(self) -> None:
        """Begin to connect. Raises CoordinationError if that is impossible."""

    async def connected(self) -> None:
        """Return once there is a connection."""

    async def close(self, deadline: float) -> None:
        """End the session, so that its ephemeral nodes disappear at once; returns by `deadline` in any case."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a node; None if it does not exist, and then the watch reports its creation."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names of the children; None, without a watch, if the node does not exist."""

    async def get_all(self, paths: Iterable[str], watch: Watch | None = None) -> list[Node | None]:
        """Read many nodes, in order. The watch is set on existing ones."""

    async def children_of_all(self, paths: Iterable[str]) -> list[list[str] | None]:
        """The children of many nodes, in order."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Node:
        """Returns the created path (of a sequence: see `multi`); raises NodeExistsError, NoNodeError (the parent)."""

    async def ensure(self, *paths: str) -> None:
        """Create these nodes and their parents, unless they exist."""

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Returns the new version; raises BadVersionError, NoNodeError."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises BadVersionError, NoNodeError, NotEmptyError."""

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        """All or nothing. One result for each operation: the created path, the new version, or None.

        Raises MultiError.
        """

    async def multi_all(
        self, multis: Iterable[Sequence[Operation]]
    ) -> list[list[Any] | MultiError | Unavailable]:
        """Send many multis, in order; each succeeds or fails independently."""

    async def restrict(self) -> int:
        """Let only brokers use nodes that everybody may use, if that is configured; returns their number."""

    async def sync(self) -> None:
        """After it, reads return at least what any broker had written when it was called."""


def with_parents(paths: Iterable[str]) -> list[str]:
    """These paths and all their parents except the root, each once, parents first."""
    found: dict[str, None] = {}
    for path in paths:
        names = path.strip("/").split("/") if path != "/" else []
        found.update(("/" + "/".join(names[:depth]), None) for depth in range(1, len(names) + 1))
    return list(found)
