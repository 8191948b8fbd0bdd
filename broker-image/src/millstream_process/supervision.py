"""Background tasks, by name: none fails unnoticed.

If a task ends with an unexpected error, it is logged with its stack and counted in `failures`
(`millstream_task_failures_total`). Its owner chooses the consequence:

    run(name, work)              nothing: the rest continues without it
    run(name, work, fatal=end)   `end` is called with one line for users; the broker ends
    keep(name, begin)            it restarts after a pause, which doubles up to LONGEST_PAUSE_S

Tasks handle expected errors themselves. Cancellation is no failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Pause before a task restarts. After LONGEST_PAUSE_S of work, the pause starts again at the shortest."""

T = TypeVar("T")

failures: dict[str, int] = {}
"""Failures of each task since the process started, by name; 0 for those that never failed."""

log = logging.getLogger(__name__)


class Tasks(set[asyncio.Task[Any]]):
    """The running tasks of one owner."""

    def add(self, task: asyncio.Task[Any]) -> None:
        super().add(task)
        task.add_done_callback(self.discard)

    async def ended(self) -> None:
        """Return when all of them have ended, with any outcome."""
        await asyncio.gather(*self, return_exceptions=True)

    async def cancel(self) -> None:
        await cancel(self)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them and wait until they have ended, with any outcome."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ended(work: Coroutine[Any, Any, T], *, stopped: asyncio.Future[Any]) -> asyncio.Task[T]:
    """The task of `work` once it has ended: by itself, or cancelled because `stopped` ended first."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
    return working


_running = Tasks()
"""References to running tasks: the loop itself does not protect them from garbage collection."""


def run(
    name: str, work: Coroutine[Any, Any, T], *, fatal: Callable[[str], None] | None = None
) -> asyncio.Task[T]:
    """Start `work`. Awaiting the task also raises its error."""
    failures.setdefault(name, 0)
    task = asyncio.create_task(work, name=name)
    _running.add(task)

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        failed(name, error, "" if fatal is None else "; the process cannot continue without it")
        if fatal is not None:
            fatal(f"{name} failed: {error!r}")

    task.add_done_callback(ended)
    return task


def keep(
    name: str, begin: Callable[[], Coroutine[Any, Any, None]], *, pause_s: float = PAUSE_S
) -> asyncio.Task[None]:
    """Run the work that `begin` starts until it returns; after a failure, pause and restart it."""

    async def lasting() -> None:
        clock, pause = asyncio.get_running_loop().time, pause_s
        while True:
            began = clock()
            try:
                return await begin()
            except Exception as error:
                if clock() - began > LONGEST_PAUSE_S:
                    pause = pause_s
                failed(name, error, f", restarting in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    return run(name, lasting())


def failed(name: str, error: BaseException, consequence: str = "") -> None:
    """Log and count an error that the task `name` did not expect."""
    failures[name] = failures.get(name, 0) + 1
    log.error("%s failed%s", name, consequence, exc_info=error)


def unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `set_exception_handler`: handles failures outside supervised tasks, such as callbacks of the loop."""
    failures["callbacks"] = failures.get("callbacks", 0) + 1
    loop.default_exception_handler(context)
