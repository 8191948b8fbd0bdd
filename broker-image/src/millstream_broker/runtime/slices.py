"""Work in slices, so that no task holds the event loop for long: after SLICE_S, others get their turn.

Work on many elements is a generator that yields after each (`steps`). A first slice of it runs at
once (`begin`); the rest follows slice by slice. In each turn of the loop, at most one task gets a
slice, in the order in which the tasks wait: however many there are, the loop reads its sockets
after each. Work that follows other work in the same turn gets the rest of the slice, at least one
step.
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


class _Turns:
    """The turns of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._over: float | None = None
        """The end of this turn's slice; None until it begins."""
        self._is_next_due = False

    def over(self, slice_s: float | None) -> float:
        """The end of this turn's slice, which begins now unless it has begun."""
        if self._over is None:
            self._over = perf_counter() + (SLICE_S if slice_s is None else slice_s)
            self._schedule()
        return self._over

    def come(self) -> asyncio.Future[None]:
        """Resolves in a turn of the loop whose slice is the caller's."""
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


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


def _of_loop() -> _Turns:
    loop = asyncio.get_running_loop()
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = _Turns(loop)
    return turns


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
    of_loop = _of_loop()
    while True:
        if (done := _until(steps, of_loop.over(slice_s))) is not None:
            return done[0]
        await of_loop.come()


def slice_left(slice_s: float | None = None) -> float:
    """Seconds left of this turn's slice, which begins now unless it has begun; negative once it is over."""
    return _of_loop().over(slice_s) - perf_counter()


async def turn() -> None:
    """Return in a later turn of the loop, with a slice of time."""
    await _of_loop().come()


def in_turn(call: Callable[[], object]) -> None:
    """Call it in a later turn of the loop, with a slice of time."""
    _of_loop().come().add_done_callback(lambda _: call())


async def turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over the items; others get their turn in between."""
    of_loop = _of_loop()
    over = of_loop.over(None)
    for item in items:
        if perf_counter() > over:
            await of_loop.come()
            over = of_loop.over(None)
        yield item


async def each_in_turn(work: Iterable[Coroutine[Any, Any, T]], *, at_once: int = 1) -> list[T]:
    """The results of all calls. A limited number begins in one turn of the loop; they wait concurrently."""
    begun: list[asyncio.Task[T]] = []
    try:
        for coroutine in work:
            begun.append(asyncio.create_task(coroutine))
            if len(begun) % at_once == 0:
                await turn()
        return await asyncio.gather(*begun)
    except asyncio.CancelledError:
        await supervision.cancel(begun)
        raise
