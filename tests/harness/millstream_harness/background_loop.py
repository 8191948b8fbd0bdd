"""One event loop in a thread of this process, for servers that synchronous clients use: they block the test's thread.

The loop is uvloop's, as the broker's own. It does not measure its steps (``millstream_process.loop``): a step would be
any broker's. While it runs, threads give way to each other as fast as in a broker's process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from millstream_process import supervision

T = TypeVar("T")
SWITCH_S = 0.0005
"""As in ``millstream_broker.main``."""
LIMIT_S = 110.0
"""Longest time that a caller waits; a test may take two minutes."""
new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
"""Makes the loop; `shuffled_loop` may replace it."""


class BackgroundLoop:
    def __init__(self) -> None:
        self._before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self.loop = new_loop()
        self.loop.set_exception_handler(supervision.unhandled)
        self._thread = threading.Thread(target=self._serve, name="brokers", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop; returns its result in the caller's thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it in one step of the loop."""

        async def call() -> T:
            return function(*arguments)

        return self.run(call())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile nothing on the loop proceeds, as if its process had been stopped: the kernel keeps what arrives."""
        entered, released = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            released.wait(LIMIT_S)

        self.loop.call_soon_threadsafe(hold)
        assert entered.wait(LIMIT_S)
        try:
            yield
        finally:
            released.set()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        sys.setswitchinterval(self._before_s)


@functools.cache
def background_loop() -> BackgroundLoop:
    """This process's loop; it starts at the first call and ends with the process."""
    loop = BackgroundLoop()
    atexit.register(loop.close)
    return loop
