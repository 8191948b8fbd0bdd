"""Deadlines by key, without a clock: the owner passes the time.

Postponing a deadline (as each heartbeat does) is one dictionary write: the heap keeps the earlier entry,
and checks it again when it comes due. Invariant: for each key with a deadline the heap holds at
least one entry that is not later than that deadline.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    def __init__(self) -> None:
        self._deadlines: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._scheduled: dict[Key, int] = {}  # each key's earliest entry in the heap
        self._numbers = itertools.count()

    def set(self, key: Key, deadline: int) -> None:
        self._deadlines[key] = deadline
        scheduled = self._scheduled.get(key)
        if scheduled is None or deadline < scheduled:
            self._push(key, deadline)

    def cancel(self, key: Key) -> None:
        self._deadlines.pop(key, None)

    def earliest(self) -> int | None:
        """A time not later than the next deadline; None if there is none."""
        while self._heap and self._heap[0][2] not in self._deadlines:
            self._pop()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> Key | None:
        """Remove one deadline that has passed, and return its key; None if none has."""
        while self._heap and self._heap[0][0] <= now:
            key = self._pop()
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= now:
                del self._deadlines[key]
                return key
            if key not in self._scheduled:
                self._push(key, deadline)
        return None

    def _push(self, key: Key, deadline: int) -> None:
        self._scheduled[key] = deadline
        heapq.heappush(self._heap, (deadline, next(self._numbers), key))

    def _pop(self) -> Key:
        deadline, _, key = heapq.heappop(self._heap)
        if self._scheduled.get(key) == deadline:
            del self._scheduled[key]
        return key
