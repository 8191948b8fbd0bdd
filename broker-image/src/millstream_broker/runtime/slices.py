"""Cooperative scheduling: long work yields, so that no task holds the event loop for more than a time slice.

Work on many elements is a generator that yields after each (`steps`). Its first time slice begins at once (`begin`);
the rest follows slice by slice (`finish`). In each iteration of the loop, at most one task gets a slice of SLICE_S, in
the order in which the tasks wait: however many there are, the loop reads its sockets after each. Work that follows
other work in the same iteration gets the rest of the slice, at least one step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from millstream_process import supervision

from .steps import Steps

T = TypeVar("T")

SLICE_S = 0.001
"""A time slice."""


class _Scheduler:
    """Gives the time slices of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._over: float | None = None
        """The end of this iteration's slice; None until it begins."""
        self._is_next_due = False

    def slice_end(self, slice_s: float | None) -> float:
        """The end of this iteration's slice, which begins now unless it has begun."""
        if self._over is None:
            self._over = perf_counter() + (SLICE_S if slice_s is None else slice_s)
            self._schedule()
        return self._over

    def next_slice(self) -> asyncio.Future[None]:
        """Resolves in an iteration of the loop whose slice is the caller's."""
        future = self._loop.create_future()
        future.add_done_callback(self._begin)
        self._waiting.append(future)
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._is_next_due:
            self._is_next_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_next_due, self._over = False, None
        while self._waiting:
            if not (future := self._waiting.popleft()).done():
                self._over = 0.0  # reserved: others get only one step until it runs
                future.set_result(None)
                self._schedule()
                return

    def _begin(self, future: asyncio.Future[None]) -> None:
        """Runs just before the future's other callbacks."""
        if not future.cancelled():
            self._over = None


_schedulers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Scheduler] = WeakKeyDictionary()


def _scheduler() -> _Scheduler:
    loop = asyncio.get_running_loop()
    if (scheduler := _schedulers.get(loop)) is None:
        scheduler = _schedulers[loop] = _Scheduler(loop)
    return scheduler


def begin(steps: Steps[T], slice_s: float | None = None) -> tuple[T] | None:
    """Run the first slice: returns the result if the work is done, otherwise None. Raises whatever the work raises."""
    return _until(steps, perf_counter() + (SLICE_S if slice_s is None else slice_s))


def _until(steps: Steps[T], over: float) -> tuple[T] | None:
    """Run at least one step, and more until that time."""
    try:
        while True:
            next(steps)
            if perf_counter() > over:
                return None
    except StopIteration as end:
        return (end.value,)


async def finish(steps: Steps[T], slice_s: float | None = None) -> T:
    """Run the rest."""
    scheduler = _scheduler()
    while True:
        if (done := _until(steps, scheduler.slice_end(slice_s))) is not None:
            return done[0]
        await scheduler.next_slice()


def slice_left(slice_s: float | None = None) -> float:
    """Seconds left of this iteration's slice, which begins now unless it has begun; negative once it is over."""
    return _scheduler().slice_end(slice_s) - perf_counter()


async def yield_to_others() -> None:
    """Yield to others; returns in a later iteration of the loop, with a time slice."""
    await _scheduler().next_slice()


def call_in_slice(call: Callable[[], object]) -> None:
    """Call it in a later iteration of the loop, with a time slice."""
    _scheduler().next_slice().add_done_callback(lambda _: call())


async def cooperatively(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over the items, and yield to others after each time slice."""
    scheduler = _scheduler()
    over = scheduler.slice_end(None)
    for item in items:
        if perf_counter() > over:
            await scheduler.next_slice()
            over = scheduler.slice_end(None)
        yield item


async def gather_in_slices(work: Iterable[Coroutine[Any, Any, T]], *, at_once: int = 1) -> list[T]:
    """The results of all calls. A limited number begins in an iteration of the loop; they wait concurrently."""
    begun: list[asyncio.Task[T]] = []
    try:
        for coroutine in work:
            begun.append(asyncio.create_task(coroutine))
            if len(begun) % at_once == 0:
                await yield_to_others()
        return await asyncio.gather(*begun)
    except asyncio.CancelledError:
        await supervision.cancel(begun)
        raise
