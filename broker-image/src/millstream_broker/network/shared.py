"""The state that all connections of a broker share, and the limits of a connection by its state."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from ..runtime.request_memory import RequestMemory
from ..runtime.stats import Stats
from ..security.quotas.quotas import Quotas
from .connection_lines import ConnectionLines
from .handlers import Handlers
from .large_requests import LargeRequests
from .login import LoginFrames
from .pending import Pending
from .routes import Route, Routes

RECEIVE_BYTES = 512 * 1024
"""Room for five requests of 64 KB, as many as a producer has in flight by default."""
SMALL_BYTES = 16 * 1024
"""Incomplete requests of this size do not count before authentication."""
MAX_UNAUTHENTICATED_BYTES = 64 * 1024 * 1024
"""Most announced bytes of larger incomplete requests, of all clients before authentication together."""
AUTHENTICATION_S = 30.0
"""How long a client may take to authenticate."""


class Served(Protocol):
    """A connection, to its server."""

    host: str
    listener: str
    active_at: float
    pending: deque[Pending]

    def close(self, reason: str = "", level: int = ...) -> None: ...


class Connections(Collection[Served]):
    """The connections of a server, and how many each address and each listener has."""

    def __init__(self) -> None:
        self._all: set[Served] = set()
        self.of_host: Counter[str] = Counter()
        self.of_listener: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._all)

    def __contains__(self, connection: object) -> bool:
        return connection in self._all

    def add(self, connection: Served) -> None:
        """A new one."""
        self._all.add(connection)
        self.of_host[connection.host] += 1
        self.of_listener[connection.listener] += 1

    def discard(self, connection: Served) -> None:
        """One that ends; a second call changes nothing."""
        if connection in self._all:
            self._all.remove(connection)
            _count_down(self.of_host, connection.host)
            _count_down(self.of_listener, connection.listener)


def _count_down(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class Access:
    """Which requests a connection may send, before or after authentication."""

    __slots__ = ("limit", "max_request_bytes", "routes")

    def __init__(self, max_request_bytes: int, limit: str) -> None:
        """`limit` names what limits the size."""
        self.max_request_bytes = max_request_bytes
        self.limit = limit
        self.routes: Routes = {}


class Shared:
    """Shared state of a broker's connections."""

    def __init__(
        self,
        handlers: Handlers,
        stats: Stats,
        memory: RequestMemory,
        max_request_bytes: int,
        unreadable: Callable[[OSError], None],
        quotas: Quotas,
        max_unauthenticated_bytes: int,
        login: LoginFrames,
    ) -> None:
        """`unreadable` is called with the error if a log cannot be read.

        `max_unauthenticated_bytes` is the size of the largest request before authentication.
        """
        self.loop = asyncio.get_running_loop()
        self.lines = ConnectionLines(self.loop, stats)
        self.handlers = handlers
        self.stats = stats
        self.memory = memory
        self.quotas = quotas
        self.full = Access(max_request_bytes, "socket.request.max.bytes")
        self.before_authentication = Access(max_unauthenticated_bytes, "before authentication")
        """Has no routes: `login` handles each frame."""
        self.authenticated = Access(max_request_bytes, "socket.request.max.bytes")
        """On listeners with authentication."""
        self.login = login
        self.of_login: Route
        """What connections' records of `login` refer to."""
        self.unauthenticated_bytes = 0
        """Announced bytes of incomplete requests before authentication."""
        self.connection_ids = itertools.count(1)
        self.unreadable = unreadable
        self.connections = Connections()
        self.large = LargeRequests(memory)
        self.large_of_brokers = LargeRequests(memory, is_of_brokers=True)
        """Separate from clients' requests, which must not delay traffic between brokers."""
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
