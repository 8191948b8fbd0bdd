"""The event loop of this package's commands: uvloop's if it is installed, otherwise asyncio's.

It measures how long it is held. A step is one callback: a readable socket, a timer, or a task from one `await` to
the next. After LOOK_S of steps the loop queues a mark after the callbacks that are due. A stall is the time from the
beginning of the last of those steps until the mark's turn: any other callback would have waited as long. The loop
counts stalls by the clock and by processor time: on a busy machine the clock also counts the time of other processes.
The log names a step of NAMED_S or longer. All this costs two reads of the clock per step, and no timer: an idle loop
stays idle.

The loop's own transports work between callbacks, outside steps; the broker's connections use none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

from .histogram import Histogram

LEAST_S = 0.001
NAMED_S = 1.0
BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets for stalls, in seconds."""
LOOK_S = 0.001

log = logging.getLogger(__name__)


class Stalls:
    """Stalls of LEAST_S or longer."""

    def __init__(self) -> None:
        self.by_clock = Histogram(BOUNDS)
        self.by_processor = Histogram(BOUNDS)
        self.are_named = False
        """Whether to log long steps: not while a process starts and imports its modules."""

    def timed(
        self, call_soon: Callable[..., object]
    ) -> Callable[[Callable[..., object], tuple[Any, ...]], None]:
        """Calls a function with arguments, and measures its duration. `call_soon` is the loop's."""
        busy, is_marked, processor = 0.0, False, thread_time()

        def timed(
            step: Callable[..., object], arguments: tuple[Any, ...], clock: Callable[[], float] = perf_counter
        ) -> None:
            nonlocal busy, is_marked
            began = clock()
            try:
                step(*arguments)
            finally:
                took = clock() - began
                busy += took
                if busy > LOOK_S and not is_marked:
                    is_marked = True
                    call_soon(mark, began)
                if took >= NAMED_S and self.are_named:
                    log.warning("the event loop was held for %.1f s by %s", took, _name(step))

        def mark(since: float) -> None:
            nonlocal busy, is_marked, processor
            took, before = perf_counter() - since, processor
            busy, is_marked, processor = 0.0, False, thread_time()
            if took >= LEAST_S:
                self.by_clock.observe(took)
                if (used := min(took, processor - before)) >= LEAST_S:
                    self.by_processor.observe(used)

        return timed


def _name(step: Callable[..., object]) -> str:
    owner = getattr(step, "__self__", None)
    if not isinstance(owner, asyncio.Task):
        return getattr(step, "__qualname__", str(step)) + (f" of {owner}" if owner is not None else "")
    where = owner.get_stack(limit=1)
    coroutine = getattr(owner.get_coro(), "__qualname__", "")
    now = f", now in {where[0].f_code.co_filename}:{where[0].f_lineno}" if where else ""
    return f"the task {owner.get_name()} ({coroutine}{now})"


_Loop: Any = object


class _Measured(_Loop):  # type: ignore[misc]
    """Makes every call of the loop through `Stalls.timed`."""

    def __init__(self) -> None:
        super().__init__()
        self.stalls = Stalls()
        self._timed = self.stalls.timed(super().call_soon)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._timed, callback, args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(self._timed, callback, args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_later(delay, *self._once(callback, args), context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_at(when, *self._once(callback, args), context=context)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        super().add_reader(fd, self._timed, callback, args)

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
        super().add_writer(fd, self._timed, callback, args)

    def _once(self, callback: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The timed callback, wrapped only once: `call_at` and `call_later` may call each other."""
        return (callback, *args) if callback is self._timed else (self._timed, callback, args)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """A loop that measures its steps."""
    base: Any
    try:
        from uvloop import Loop as base
    except ImportError:
        base = asyncio.SelectorEventLoop
    return type("Loop", (_Measured, base), {})


def stalls() -> Stalls:
    """The stalls of the running loop; none if it does not measure them."""
    found = getattr(asyncio.get_running_loop(), "stalls", None)
    return found if isinstance(found, Stalls) else Stalls()
