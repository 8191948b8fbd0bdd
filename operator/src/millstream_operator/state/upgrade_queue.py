"""Which of an operator's Clusters may be upgraded now (see reconcile/cluster/upgrades.py)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..models import Cluster
from ..models.conditions import ConditionType
from ..models.keys import Key
from .cache import Store


@dataclass(slots=True)
class UpgradeQueue:
    """The Cluster that may be upgraded now, among those of an operator. Thread-safe."""

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
                # Only after a restart of the operator, the Cluster it was upgrading continues: later on, the status of
                # a Cluster that gave its turn back may still say that it is being upgraded.
                resumed, self._resumed = self._resumed, True
                self._holder = key if resumed or _is_upgrading(store, key) else _upgrading(store) or key
            if self._holder != key:
                self._waiting.add(key)
            return self._holder

    def has(self, store: Store, key: Key) -> bool:
        """Whether a Cluster has the turn, or had it before the operator restarted."""
        return self._holder == key or (self._holder is None and _is_upgrading(store, key))

    def leave(self, store: Store, key: Key) -> None:
        """Give a Cluster's turn back; wakes the Clusters that wait for it."""
        with self._lock:
            self._waiting.discard(key)
            if self._holder != key:
                return
            self._holder = None
            waiting, self._waiting = self._waiting, set()
        for other in waiting:
            store.wake(other)


def _upgrading(store: Store) -> Key | None:
    """The Cluster whose status says that it is being upgraded."""
    return next((key for key in sorted(store.keys(Cluster.KIND)) if _is_upgrading(store, key)), None)


def _is_upgrading(store: Store, key: Key) -> bool:
    conditions: Any = ((store.raw(key) or {}).get("status") or {}).get("conditions") or ()
    return any(
        isinstance(condition, Mapping)
        and (condition.get("type"), condition.get("status")) == (ConditionType.UPGRADING.value, "True")
        for condition in conditions
    )
