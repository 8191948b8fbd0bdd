"""Whose turn it is to be upgraded, among the Clusters of an operator (see reconcile/upgrades.py)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .conditions import ConditionType
from .models import Cluster
from .store import Key, Store


@dataclass(slots=True)
class Turns:
    """Whose turn it is, among the Clusters of an operator. Any thread may ask."""

    _holder: Key | None = None
    _resumed: bool = False
    _waiting: set[Key] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, store: Store, key: Key) -> Key:
        """Give a Cluster the turn if it is free; returns the holder."""
        with self._lock:
            if self._holder is not None and self._holder not in store:
                self._holder = None
            if self._holder is None:
                # After a restart of the operator, the one that it was at goes on. Only then: the status of one that
                # gave its turn back may say so for good.
                resumed, self._resumed = self._resumed, True
                self._holder = key if resumed or _is_upgrading(store, key) else _upgrading(store) or key
            if self._holder != key:
                self._waiting.add(key)
            return self._holder

    def has(self, store: Store, key: Key) -> bool:
        """Whether it is a Cluster's turn; after a restart of the operator, whether it was."""
        return self._holder == key or (self._holder is None and _is_upgrading(store, key))

    def leave(self, store: Store, key: Key) -> None:
        """A Cluster needs its turn no longer, or not now; those that wait look again."""
        with self._lock:
            self._waiting.discard(key)
            if self._holder != key:
                return
            self._holder = None
            waiting, self._waiting = self._waiting, set()
        for other in waiting:
            store.wake(other)


def _upgrading(store: Store) -> Key | None:
    """The Cluster that says that it is being upgraded."""
    return next((key for key in sorted(store.keys(Cluster.KIND)) if _is_upgrading(store, key)), None)


def _is_upgrading(store: Store, key: Key) -> bool:
    conditions: Any = ((store.raw(key) or {}).get("status") or {}).get("conditions") or ()
    return any(
        isinstance(one, Mapping)
        and (one.get("type"), one.get("status")) == (ConditionType.UPGRADING.value, "True")
        for one in conditions
    )
