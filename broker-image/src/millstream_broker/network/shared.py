"""The state that all connections of a broker share, and the limits of a connection by its state."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..runtime.request_memory import RequestMemory
from ..runtime.stats import Stats
from ..security.quotas.quotas import Quotas
from .handlers import Handlers
from .large_requests import LargeRequests
from .pending import Pending
from .routes import Routes

RECEIVE_BYTES = 512 * 1024
"""Room for five requests of 64 KB, as many as a producer has in flight by default."""
MAX_UNAUTHENTICATED_BYTES = 512 * 1024
"""Largest request before authentication: the default of Kafka's sasl.server.max.receive.size."""


class Served(Protocol):
    """A connection, to its server."""

    host: str
    listener: str
    active_at: float
    pending: deque[Pending]

    def close(self, reason: str = "", level: int = ...) -> None: ...


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
    ) -> None:
        """`unreadable` is called with the error if a log cannot be read."""
        self.loop = asyncio.get_running_loop()
        self.handlers = handlers
        self.stats = stats
        self.memory = memory
        self.quotas = quotas
        self.full = Access(max_request_bytes, "socket.request.max.bytes")
        self.before_authentication = Access(MAX_UNAUTHENTICATED_BYTES, "before authentication")
        self.connection_ids = itertools.count(1)
        self.unreadable = unreadable
        self.connections: set[Served] = set()
        self.large = LargeRequests(memory)
        self.large_of_brokers = LargeRequests(memory, is_of_brokers=True)
        """Separate from clients' requests, which must not delay traffic between brokers."""
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
