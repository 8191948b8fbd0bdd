"""Where the cluster's tree of nodes is kept: what any store of it offers, by ZooKeeper's rules.

`zookeeper`: an ensemble, for a cluster of many brokers. `file`: a file in the first log directory, for a broker by
itself. Whatever stands above works on either of them and does not know on which.

A node has data and a version, which each change of the data raises. An *ephemeral* node goes with the session of
whoever made it. A multi happens whole or not at all. A watch is set by reading with `watch=`, and is called once, on
the loop, with the path. Watches are lost with the connection, and nothing tells them so: on every `CONNECTED` all that
matters is read again, with new watches.

A call that fails raises StoreError of one kind or another, or Unavailable. **Unavailable says nothing about a write**:
it may have happened. Whoever writes reads back before he writes again.
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
    """The store did not answer in time; a write may or may not have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.REQUEST_TIMED_OUT)


class StoreError(Exception):
    """The store refuses an operation; the text is the path, where it is known."""


class NoNodeError(StoreError):
    """There is no such node, or none above the one that was to be made."""


class NodeExistsError(StoreError):
    pass


class BadVersionError(StoreError):
    """The node has another version than was expected."""


class NotEmptyError(StoreError):
    """There are nodes below the one that was to be deleted."""


class MultiError(Exception):
    """A multi that did nothing: the operation at `index` failed with `error`."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"operation {index}: {error!r}")
        self.index = index
        self.error = error


class State(Enum):
    """Of the connection: SUSPENDED without one, though the session may live on; LOST when the session is over."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Node(NamedTuple):
    """A node as it was read: `created` is the transaction that made it (czxid), `owner` the session of an ephemeral."""

    data: bytes
    version: int
    created: int
    owner: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    """`sequence`: the path is completed by a number of ten digits, larger than those before."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """`version` -1: whatever it is."""

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
    """All calls are made on the loop; str() says where it is, as in a message. Times are in seconds."""

    timeout: float
    """How long a session outlives its process."""
    max_node_bytes: int
    """The largest data of a node."""
    on_state: Callable[[State, bool], None]
    """Told of each state, and whether the session is another one, in which what was ephemeral is gone."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def session_id(self) -> int:
        """The newest session's; what it owns is ours."""

    def start(self) -> None:
        """Begin to connect. Raises CoordinationError where that cannot be."""

    async def connected(self) -> None:
        """Return when there is a connection."""

    async def close(self, deadline: float) -> None:
        """End the session, so that what is ephemeral goes at once; not later than `deadline`, come what may."""

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """None when there is no such node; the watch then tells when there is."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names of the nodes below; None when there is no such node, and then no watch either."""

    async def get_all(self, paths: Iterable[str], watch: Watch | None = None) -> list[Node | None]:
        """Many at once, in their order. The watch is on those that there are."""

    async def children_of_all(self, paths: Iterable[str]) -> list[list[str] | None]:
        """Many at once, in their order."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Node:
        """Returns what was created (of a sequence: see `multi`); raises NodeExistsError, NoNodeError (the parent)."""

    async def ensure(self, *paths: str) -> None:
        """Make these nodes, and those above them, where they are not."""

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Returns the new version; raises BadVersionError, NoNodeError."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises BadVersionError, NoNodeError, NotEmptyError."""

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        """All or nothing. A result each: the path of what was created, the new version of what was set, else None.

        Raises MultiError.
        """

    async def multi_all(
        self, multis: Iterable[Sequence[Operation]]
    ) -> list[list[Any] | MultiError | Unavailable]:
        """Many multis at once, in their order; each succeeds or fails by itself."""


def with_parents(paths: Iterable[str]) -> list[str]:
    """These paths and all above them but the root, each once, parents first."""
    found: dict[str, None] = {}
    for path in paths:
        names = path.strip("/").split("/") if path != "/" else []
        found.update(("/" + "/".join(names[:depth]), None) for depth in range(1, len(names) + 1))
    return list(found)
