"""Wakes tasks that wait for news, and costs next to nothing while none waits."""

from __future__ import annotations

import asyncio
import contextlib


class Wakeup:
    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Wake all tasks that wait now."""
        for waiting in self._waiting:
            _end(waiting)

    async def wait(self, seconds: float) -> None:
        """Return when it rings next, or after this time."""
        loop = asyncio.get_running_loop()
        rung: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end, rung)
        self._waiting.add(rung)
        try:
            await rung
        finally:
            timer.cancel()
            self._waiting.discard(rung)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after this time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
