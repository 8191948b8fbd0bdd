"""Work of threads that the event loop does itself, so that a test fixes when it is done.

For tests that count: how many writes wait together depends on how long the disk takes for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ThreadsInTurn(ThreadPoolExecutor):
    """Does the work of `asyncio.to_thread` on the running loop, from its creation on.

    It does each piece at once; or, if the pieces `wait`, when the loop has nothing else to do: one at a time, in order.
    """

    def __init__(self, *, wait: bool) -> None:
        super().__init__(1)
        self._wait = wait
        self._work: deque[Callable[[], None]] = deque()
        loop: Any = asyncio.get_running_loop()
        self._select, loop._selector.select = loop._selector.select, self._select_or_work
        loop.set_default_executor(self)

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work(*args, **more))
            except Exception as error:
                done.set_exception(error)

        if self._wait:
            self._work.append(run)
        else:
            run()
        return done

    def _select_or_work(self, timeout: float | None = None) -> Any:
        events = self._select(0)
        if events or timeout == 0 or not self._work:
            return events or self._select(timeout)
        self._work.popleft()()
        return []
