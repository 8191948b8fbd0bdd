"""An event loop in a thread of its own: blocking code runs coroutines on it. A process has one for all connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Starts with the first call, and ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the coroutine's result, from any other thread; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="kafka", daemon=True).start()
            return self._loop


KAFKA = LoopThread()
