"""How many Kubernetes Events are written: enough to tell what happened, too few to flood.

An object has BURST Events at once and then one in EVERY_S; all objects together have more, of each type apart, so that
news of a thousand new Topics does not hide a warning. What is beyond that is dropped and counted: conditions say the
same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .store import Key
from .transitions import EventType

BURST, EVERY_S = 10, 60.0
BURST_OF_ALL, EVERY_S_OF_ALL = 200, 0.5
MOST_OBJECTS = 1000
"""Objects whose Events are counted; those that may have all of their burst again are forgotten first."""


@dataclass(slots=True)
class Bucket:
    """Holds ``burst`` tokens, and gets another one every ``every_s``."""

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
        """How much of what was spent is still missing."""
        return max(0.0, self._spent - (now - self._at) / self.every_s)


@dataclass(slots=True)
class Budget:
    """Which Events may be written. May be asked by many threads at once."""

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
