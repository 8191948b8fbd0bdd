"""Look-ups by time: in a thread of their own, one after the other.

A look-up may read the time index of each segment, and decompress a batch. In the threads of `asyncio.to_thread`, many
of them would delay fsyncs, the coordination and a stop; here they delay one another.

Nobody waits for a look-up whose client has gone, or whose broker stops: one that has not begun never does, and one that
runs ends at its next check, at the latest after one batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Check = Callable[[], None]


class LookUpEndedError(Exception):
    """The look-up is no longer wanted."""


class LookUps:
    """All calls are made on the loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "look-up")

    async def run(self, look_up: Callable[[Check], T]) -> T:
        """Run it in the thread. It often calls the function that it gets, which raises once the caller is cancelled."""
        ended = threading.Event()

        def check() -> None:
            if ended.is_set():
                raise LookUpEndedError

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, look_up, check)
        finally:
            ended.set()

    def close(self) -> None:
        """Begin no more. All callers are cancelled by now."""
        self._thread.shutdown(wait=False, cancel_futures=True)
