"""Work in slices, so that nobody has the event loop for long: after SLICE_S the others have their turn.

What works on many elements is a generator that yields after each (`steps`). Little of it is done at
once (`begin`); the rest goes on slice by slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from time import perf_counter
from typing import Any, TypeVar

from .steps import Steps

T = TypeVar("T")

SLICE_S = 0.001


def begin(steps: Steps[T], slice_s: float | None = None) -> tuple[T] | None:
    """The first slice: the result where that was all, else None. Raises what the work raises."""
    over = perf_counter() + (SLICE_S if slice_s is None else slice_s)
    try:
        while True:
            next(steps)
            if perf_counter() > over:
                return None
    except StopIteration as end:
        return (end.value,)


async def finish(steps: Steps[T], slice_s: float | None = None) -> T:
    """The rest, however much it is."""
    while True:
        if (done := begin(steps, slice_s)) is not None:
            return done[0]
        await asyncio.sleep(0)


async def turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them. Others have their turn in between."""
    over = perf_counter() + SLICE_S
    for item in items:
        if perf_counter() > over:
            await asyncio.sleep(0)
            over = perf_counter() + SLICE_S
        yield item


async def each_in_turn(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all of them. Each begins in a turn of its own, and waits together with the others."""
    begun = []
    for one in work:
        begun.append(asyncio.ensure_future(one))
        await asyncio.sleep(0)
    return await asyncio.gather(*begun)
