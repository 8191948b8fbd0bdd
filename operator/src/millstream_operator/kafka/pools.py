"""Connections to clusters' brokers: one for each address, and for each user of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from millstream_kafka.client.security import Security

from .admin import KafkaAdmin
from .connection import Fence, no_fence


class AdminPool:
    """One KafkaAdmin for each address. ``fence``: see connection.py."""

    def __init__(self, fence: Fence = no_fence) -> None:
        self.fence = fence
        self._lock = threading.Lock()
        self._admins: dict[str, KafkaAdmin] = {}

    def at(self, bootstrap: str, security: Security | None = None) -> KafkaAdmin:
        """The brokers at that address. ``security``: of connections from now on; open ones stay."""
        with self._lock:
            if (admin := self._admins.get(bootstrap)) is None:
                admin = self._admins[bootstrap] = self.new(bootstrap)
            admin.security = security
            return admin

    def new(self, bootstrap: str) -> KafkaAdmin:
        return KafkaAdmin(bootstrap, fence=lambda: self.fence())

    def retry(self, bootstrap: str) -> None:
        """Let the next call to a cluster connect again, of which a broker has just become ready."""
        with self._lock:
            admin = self._admins.get(bootstrap)
        if admin is not None:
            admin.retry()

    def forget(self, bootstrap: str) -> None:
        """Drop the client of a deleted cluster."""
        with self._lock:
            admin = self._admins.pop(bootstrap, None)
        if admin is not None:
            admin.close()

    def leave(self, bootstrap: str) -> None:
        """Drop the client of a cluster whose address has changed; whoever still has it connects again."""
        with self._lock:
            admin = self._admins.pop(bootstrap, None)
        if admin is not None:
            admin.leave()

    def close(self) -> None:
        with self._lock:
            admins, self._admins = self._admins, {}
        for admin in admins.values():
            admin.close()


class OwnAdmins:
    """A pool for each user, who closes it without closing another's connections. ``fence``: see connection.py."""

    def __init__(self, new: Callable[[Fence], AdminPool] = AdminPool) -> None:
        self.fence: Fence = no_fence
        self._new = new
        self._lock = threading.Lock()
        self._pools: dict[Hashable, AdminPool] = {}

    def of(self, user: Hashable) -> AdminPool:
        with self._lock:
            if user not in self._pools:
                self._pools[user] = self._new(lambda: self.fence())
            return self._pools[user]

    def forget(self, user: Hashable) -> None:
        """Close this user's connections."""
        with self._lock:
            pool = self._pools.pop(user, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        for user in list(self._pools):
            self.forget(user)
