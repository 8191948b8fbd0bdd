"""Limits the rate of Kubernetes Events: enough to tell what happened, too few to flood.

Each object may have BURST Events at once, then one every EVERY_S. All objects together have a larger budget for each
type of Event, so a thousand new Topics do not hide a warning. Events beyond the budget are dropped and counted;
conditions still have their contents.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..models.event import EventType
from ..models.keys import Key

BURST, EVERY_S = 25, 60.0
BURST_OF_ALL, EVERY_S_OF_ALL = 200, 0.5
MOST_OBJECTS = 1000
"""Objects whose Events are counted; those with a full burst are forgotten first."""


@dataclass(slots=True)
class Bucket:
    """Token bucket: holds ``burst`` tokens, and gains one every ``every_s``."""

    burst: int
    every_s: float
    _spent: float = 0.0
    _at: float = 0.0

    def is_full(self, now: float) -> bool:
        return self._left(now) <= 0.0

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        spent = self._left(now)
        if spent > self.burst - 1:
            return False
        self._spent, self._at = spent + 1, now
        return True

    def _left(self, now: float) -> float:
        """The tokens that were spent and have not come back."""
        return max(0.0, self._spent - (now - self._at) / self.every_s)


@dataclass(slots=True)
class Budget:
    """Decides which Events may be written. Thread-safe."""

    clock: Callable[[], float] = time.monotonic
    _objects: dict[Key, Bucket] = field(default_factory=dict)
    _all: dict[EventType, Bucket] = field(
        default_factory=lambda: {kind: Bucket(BURST_OF_ALL, EVERY_S_OF_ALL) for kind in EventType}
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allows(self, key: Key, kind: EventType) -> bool:
        now = self.clock()
        with self._lock:
            if len(self._objects) >= MOST_OBJECTS and key not in self._objects:
                self._objects = {
                    one: bucket for one, bucket in self._objects.items() if not bucket.is_full(now)
                }
            bucket = self._objects.setdefault(key, Bucket(BURST, EVERY_S))
            return bucket.take(now) and self._all[kind].take(now)
