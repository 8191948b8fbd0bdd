"""The bytes of requests that a broker holds, of all connections together: bounded by `queued.max.request.bytes`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class RequestMemory:
    """All calls are made on the loop."""

    __slots__ = ("_starved", "held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._starved: list[Callable[[], None]] = []

    def hold(self, size: int) -> None:
        """So many bytes more are held, whatever the limit."""
        self.held += size

    def free(self, size: int) -> None:
        self.held -= size
        if self._starved:
            starved, self._starved = self._starved, []
            loop = asyncio.get_running_loop()
            for resume in starved:
                loop.call_soon(resume)

    @property
    def is_full(self) -> bool:
        return self.held > self.limit

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._starved)

    def wait(self, resume: Callable[[], None]) -> None:
        """Have `resume` called when there may be room."""
        self._starved.append(resume)
