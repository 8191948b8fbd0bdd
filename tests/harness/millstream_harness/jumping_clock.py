"""An event loop with real sockets and threads whose clock jumps to the next timer when nothing else can happen.

``virtual_time`` is for parts of the broker that wait only for the loop. This clock is for whole brokers
(``in_process_cluster``): sessions end, replicas lag, retention and groups run out as fast as the test's computer works.

No time passes while anything can still happen without it: a callback is ready, a socket can be read or written, or a
thread of the loop's executors works. Everything that talks must be on this loop: nothing waits for what another thread
or process sends. On this loop that is exact, because Linux delivers to a loopback socket before the sender's call
returns (``test_jumping_clock`` checks it).

A thread must not wait for the loop's time to pass: use asynchronous clients. If everything waits and no timer is set,
the test fails at once; and after a minute of real time, if a thread does not end.

In the test's thread, `time.time` and `time.monotonic` follow this clock. `perf_counter` does not, so slices of work and
timings in metrics stay real.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, ParamSpec
from unittest import mock

from .activity import watch

P = ParamSpec("P")
LIMIT_S = 3600.0
"""Time of the clock after which a test has failed."""
THREAD_S = 60.0
"""Real time that a thread gets for a piece of work."""


class _Selector(selectors.DefaultSelector):
    """Jumps instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.working = 0
        """Threads at work."""

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self.working:
            found = super().select(THREAD_S)
            assert found, f"a thread has worked for {THREAD_S:g} s: no time passes until it ends"
            return found
        if timeout is None:
            raise AssertionError("everything waits, and no timer is set: nothing will ever happen")
        self.now += timeout
        return []


class JumpingClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)
        watch(self, self._count)

    def time(self) -> float:
        return self._clock.now

    def _count(self, threads: int) -> None:
        self._clock.working += threads

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Does nothing: all threads are idle now, and asyncio would wait for one that does not count."""


def jumping_clock(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorates a coroutine function of a test: it runs on a `JumpingClockLoop`."""

    async def limited(*args: P.args, **kwargs: P.kwargs) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with ExitStack() as stack:
            runner = stack.enter_context(asyncio.Runner(loop_factory=JumpingClockLoop))
            _follow(stack, runner.get_loop())
            runner.run(limited(*args, **kwargs))

    return run


def _follow(stack: ExitStack, loop: asyncio.AbstractEventLoop) -> None:
    """Let this thread's `time.time` and `time.monotonic` follow the loop, also where the product has imported them."""
    thread = threading.get_ident()
    for name, real in (("time", time.time), ("monotonic", time.monotonic)):
        began = real()

        def follow(real: Callable[[], float] = real, began: float = began) -> float:
            return began + loop.time() if threading.get_ident() == thread else real()

        stack.enter_context(mock.patch.object(time, name, follow))
        modules = [one for key, one in list(sys.modules.items()) if key.startswith("millstream")]
        for module in modules:
            for attribute, value in list(vars(module).items()):
                if value is real:
                    stack.enter_context(mock.patch.object(module, attribute, follow))


def now() -> float:
    """The loop's time, to the millisecond."""
    return round(asyncio.get_running_loop().time(), 3)
