"""An event loop whose clock jumps to the next timer when nothing else is ready.

Pauses, timeouts and intervals pass at once and in order, so a test can fix exactly when something happens. For
code that waits only for the loop: no sockets, no threads. If everything waits and no timer is set, the test
fails at once instead of hanging, and after an hour of its clock in any case.

The broker's slices of work last a thousand steps here, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec
from unittest import mock

from millstream_broker.runtime import slices

P = ParamSpec("P")
LIMIT_S = 3600.0
STEP_S = slices.SLICE_S / 1000
"""Duration of a read of the processor's clock."""


class _Selector(selectors.DefaultSelector):
    """Adds up the time that the loop would have waited."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everything waits, and no timer is set: nothing will ever happen")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


new_loop: Callable[[], asyncio.AbstractEventLoop] = VirtualTimeLoop
"""Makes the loops of tests; `shuffled_loop` may replace it."""


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorates a coroutine function of a test: it runs on a `VirtualTimeLoop`."""

    async def limited(*args: P.args, **kwargs: P.kwargs) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        clock = mock.patch.object(
            slices, "perf_counter", functools.partial(next, itertools.count(0.0, STEP_S))
        )
        with clock, asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(limited(*args, **kwargs))

    return run


def now() -> float:
    """The loop's time, to the millisecond."""
    return round(asyncio.get_running_loop().time(), 3)


async def turns(count: int = 20) -> None:
    """Run all tasks that can proceed without time passing."""
    for _ in range(count):
        await asyncio.sleep(0)
