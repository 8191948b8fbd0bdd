"""The time in which nothing is read from a client beyond its quota (KIP-219)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..runtime.stats import Stats


class Mute:
    """That time of one connection."""

    __slots__ = ("_loop", "_stats", "_timer", "_until", "is_on")

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats) -> None:
        self._loop = loop
        self._stats = stats
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self.is_on = False

    def begin(self, throttle_ms: int, over: Callable[[], None]) -> None:
        """Call `over` when the time has passed, unless a longer one began earlier; it calls `end`."""
        until = self._loop.time() + throttle_ms / 1000
        if self._timer is None:
            self._stats.muted += 1
        elif self._until >= until:
            return
        else:
            self._timer.cancel()
        self.is_on = True
        self._until = until
        self._timer = self._loop.call_at(until, over)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._stats.muted -= 1
            self.is_on = False
