"""Long work in steps, so that it does not hold the event loop: other tasks, heartbeats and probes need it, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
AT_ONCE = 256
"""Items handled in one step."""


async def in_steps(work: Generator[None, None, T]) -> T:
    """Run a generator to its end, one step of it in each turn of the loop."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def in_turns(items: Iterable[T]) -> AsyncGenerator[T]:
    """The items, as many as ``AT_ONCE`` in each turn of the loop."""
    for number, item in enumerate(items, 1):
        yield item
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
