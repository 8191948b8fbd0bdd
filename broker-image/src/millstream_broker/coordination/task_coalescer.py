"""Level-triggered work on the tree, one task at a time.

A watch or a reconnection requests a task (`need`). Requests made before a run of the task starts share that run. A
task that fails because the store is down is repeated once it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from millstream_process import supervision

from . import CoordinationError
from .controllership import Fenced
from .stores import Store, StoreError, Unavailable

PAUSE_S = 1.0
"""Pause after a temporary failure."""

log = logging.getLogger(__name__)


class TaskCoalescer:
    """`tasks` are in their order of precedence, by name."""

    def __init__(self, nodes: Store, tasks: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._needed: set[str] = set()
        self._wake = asyncio.Event()

    def need(self, *names: str) -> None:
        self._needed.update(names)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or until a task raises Fenced."""
        while True:
            await self._wake.wait()
            await self._nodes.connected()
            name = next(name for name in self._tasks if name in self._needed)
            self._needed.discard(name)
            if not self._needed:
                self._wake.clear()
            try:
                await self._tasks[name]()
                continue
            except Unavailable:
                pause = 0.05
            except Fenced:
                raise
            except (CoordinationError, StoreError) as error:
                log.error("coordination, %s: %s", name, error)
                pause = PAUSE_S
            except Exception as error:
                supervision.failed("coordination's watches", error, f", {name}, retrying")
                pause = PAUSE_S
            self.need(name)
            await asyncio.sleep(pause)
