"""Work in slices, so that no task holds the event loop for long: after SLICE_S the others have their turn.

Work on many elements is a generator that yields after each (`steps`). A first slice of it runs at
once (`begin`); the rest follows slice by slice.
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
    """Run the first slice: returns the result if that was all, otherwise None. Raises what the work raises."""
    over = perf_counter() + (SLICE_S if slice_s is None else slice_s)
    try:
        while True:
            next(steps)
            if perf_counter() > over:
                return None
    except StopIteration as end:
        return (end.value,)


async def finish(steps: Steps[T], slice_s: float | None = None) -> T:
    """Run the rest."""
    while True:
        if (done := begin(steps, slice_s)) is not None:
            return done[0]
        await asyncio.sleep(0)


async def turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over the items; others have their turn in between."""
    over = perf_counter() + SLICE_S
    for item in items:
        if perf_counter() > over:
            await asyncio.sleep(0)
            over = perf_counter() + SLICE_S
        yield item


async def each_in_turn(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all. Each begins in its own turn of the loop; they wait concurrently."""
    begun = []
    for one in work:
        begun.append(asyncio.ensure_future(one))
        await asyncio.sleep(0)
    return await asyncio.gather(*begun)
