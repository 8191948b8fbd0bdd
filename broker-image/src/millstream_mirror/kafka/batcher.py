"""Lookups of many tasks in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RequestBatcher(Generic[K, V]):
    """Collects the keys that tasks ask for while a request is under way, and asks for all of them in the next one."""

    def __init__(self, ask: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> None:
        """``ask`` returns a value for each key; what it raises, all who wait for it raise."""
        self._ask = ask
        self._waiting: dict[K, asyncio.Future[V]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def get(self, key: K) -> V:
        if key not in self._waiting:
            future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._waiting[key] = future
        answer = self._waiting[key]
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._run())
        return await asyncio.shield(answer)

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                found = await self._ask(waiting.keys())
                for key, future in waiting.items():
                    future.set_result(found[key])
            except Exception as error:
                for future in waiting.values():
                    if not future.done():
                        future.set_exception(error)
