"""What is at work on a loop for one broker, or anything else that is started and ended as a whole.

An activity is a context (`contextvars`), which the loop's tasks, callbacks and threads inherit. On a loop that has been
`watch`ed, its tasks and its calls in threads are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

from millstream_process import supervision

T = TypeVar("T")
Count = Callable[[int], None]
"""Called with 1 for a thread that begins a call, and with -1 once the loop has its result."""
THREADS = 32
"""Most threads of a loop at work."""


class Activity:
    """The tasks and working threads of one start of a broker."""

    current: contextvars.ContextVar[Activity | None] = contextvars.ContextVar("activity", default=None)
    running: ClassVar[WeakSet[Activity]] = WeakSet()
    """Those of this process that have not ended."""

    def __init__(self, log: Path) -> None:
        """``log``: the file for its warnings."""
        self.log = log
        self.tasks: set[asyncio.Task[Any]] = set()
        self._threads = 0
        self._is_quiet = asyncio.Event()
        if not Activity.running:
            supervision.failures.clear()
        Activity.running.add(self)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the context of this activity."""
        return await asyncio.get_running_loop().create_task(work, context=self._context())

    def call(self, function: Callable[[], T]) -> T:
        """Call it in the context of this activity, in this step of the loop."""
        return self._context().run(function)

    def _context(self) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(Activity.current.set, self)
        return context

    def count(self, threads: int) -> None:
        self._threads += threads
        if not self._threads:
            self._is_quiet.set()

    async def quiet(self) -> None:
        """Return in a step in which no thread works."""
        while self._threads:
            self._is_quiet.clear()
            await self._is_quiet.wait()

    async def end(self) -> None:
        """Cancel all tasks, and return when they and the threads have ended."""
        while self.tasks or self._threads:
            await supervision.cancel(self.tasks)
            await self.quiet()
        Activity.running.discard(self)
        if not Activity.running:
            gc.unfreeze()  # a broker of thousands of partitions has excluded all objects of this process


def watch(loop: asyncio.AbstractEventLoop, also: Count | None = None) -> None:
    """From now on tasks and threads that begin on this loop count for the activity in whose context they begin.

    ``also`` counts the threads of every context. Further calls for a loop change nothing.
    """
    if getattr(loop, "is_watched", False):
        return
    in_executor = loop.run_in_executor
    default = ThreadPoolExecutor(THREADS, "loop")
    loop.set_default_executor(default)

    def new_task(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        context: contextvars.Context | None = options.get("context")
        activity = Activity.current.get() if context is None else context.get(Activity.current)
        if activity is not None:
            activity.tasks.add(task)
            task.add_done_callback(activity.tasks.discard)
        return task

    def run_in_executor(
        executor: Executor | None, call: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        passing = _Passing(executor or default)
        working = in_executor(passing, call, *arguments)
        activity = Activity.current.get()
        counts = [one for one in (also, None if activity is None else activity.count) if one is not None]

        def count(threads: int) -> None:
            for one in counts:
                one(threads)

        def ended(_: Future[Any]) -> None:
            """In any thread; after the loop has the result, because this was registered later."""
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(count, -1)

        count(1)
        passing.passed.add_done_callback(ended)
        return working

    loop.set_task_factory(new_task)  # type: ignore[arg-type]
    loop.run_in_executor = run_in_executor  # type: ignore[method-assign,assignment]
    loop.is_watched = True  # type: ignore[attr-defined]


class _Passing(Executor):
    """Passes one call on, and keeps its future: it tells when the thread ends, even if nobody waits any more."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.passed: Future[Any]

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self.passed = self._executor.submit(call, *arguments, **options)
        return self.passed
