"""Makes log starts durable after DeleteRecords, in a thread: a group commit for each log directory.

All starts that move while one write runs share the next one (`LogDir.commit_starts`), which begins after a pause as
long as the write: with thousands of partitions it takes the processor. A broker acknowledges a start, to a client or to
its leader, once it is durable (`Log.durable_start`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream_process import supervision

from ..log.directory import describe
from ..log.log import Log
from ..log.state import Home

log = logging.getLogger(__name__)


class LogStarts:
    """All calls are made on the loop."""

    def __init__(self) -> None:
        self._waiting: dict[Home, list[Callable[[], None]]] = {}
        """Callers of directories that are being written: they share the next write."""
        self._writes = supervision.Tasks()

    def commit(self, moved: Log, then: Callable[[], None]) -> None:
        """Write the start of a log, and call `then` afterwards, even if it failed: see `Log.durable_start`."""
        moved.keep_start()
        if (home := moved.home) is None:
            then()
        elif home in self._waiting:
            self._waiting[home].append(then)
        else:
            self._waiting[home] = [then]
            self._writes.add(supervision.run("log starts", self._write(home)))

    async def _write(self, home: Home) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while served := self._waiting[home]:
                self._waiting[home] = []
                began = clock()
                try:
                    await asyncio.to_thread(home.commit_starts)
                except OSError as error:
                    log.error("cannot write log starts: %s", describe(error))
                    home.check(error)
                for then in served:
                    then()
                if self._waiting[home]:
                    await asyncio.sleep(clock() - began)
        finally:
            del self._waiting[home]

    async def close(self) -> None:
        """Return when all have been written."""
        await self._writes.ended()
