"""An event loop on which everything from outside comes late, in an order that a seed decides.

``pytest --shuffle-callbacks SEED`` runs all asynchronous tests on it. It changes only what asyncio leaves open:

- a socket that can be read or written is noticed some turns later, and of several sockets any may be first;
- a thread begins its work later, and its result reaches the loop some turns after its end; results of one thread
  keep their order;
- timers of the same time run in any order.

Everything else keeps asyncio's promises: what `call_soon` gets runs in the order of the calls, one turn later, so a
transport is made before it receives, callbacks of a future run in their order, and tasks begin and wake in the order
in which they were created and woken. Timers run in the order of their times, and as soon as they are due.

So every order that this loop makes can happen on a busy machine, and a failure is a defect: of a test, which assumes
that something outside is done after a number of turns (wait for the state instead), or of the product. The seed and
the name of the test decide what is late. Since threads and the kernel have their own pace, a seed does not always
repeat a failure: run the test several times.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from . import virtual_time

TURNS = (0, 0, 0, 1, 2, 5, 30)
"""By how many turns of the loop something comes late."""
PAUSES_S = (0.0, 0.0, 0.0, 0.0, 0.001, 0.01)
"""How long work waits for its thread."""
SAME_TIME_S = 5e-10
"""Timers this close to each other run in any order; below a loop's resolution, so that none is a turn later."""


class _Selector(selectors.DefaultSelector):
    """Withholds events for some turns: the kernel reports them again each time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._turns: dict[int, int] = {}
        """Turns left by descriptor."""

    def select(self, timeout: float | None = None) -> list[Any]:
        due = []
        for event in super().select(timeout):
            fd = event[0].fd
            left = self._turns.pop(fd, None)
            if left is None:
                left = self._chance.choice(TURNS)
            if left:
                self._turns[fd] = left - 1
            else:
                due.append(event)
        self._chance.shuffle(due)
        return due


class _Late(asyncio.SelectorEventLoop):
    """Threads and timers of a loop; sockets are its selector's."""

    chance: random.Random

    def __init__(self, *more: Any) -> None:
        self._own = threading.current_thread()
        self._lines: dict[int, deque[asyncio.Handle]] = {}
        """Callbacks that threads have handed over, by thread."""
        super().__init__(*more)

    def call_at(self, when: float, *what: Any, **more: Any) -> asyncio.TimerHandle:
        return super().call_at(when + self.chance.random() * SAME_TIME_S, *what, **more)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        if threading.current_thread() is self._own:
            return super().call_soon_threadsafe(callback, *args, context=context)
        line = self._lines.setdefault(threading.get_ident(), deque())
        handle = asyncio.Handle(callback, args, self, context)
        line.append(handle)
        super().call_soon_threadsafe(self._arrive, line, None)
        return handle

    def _arrive(self, line: deque[asyncio.Handle], left: int | None) -> None:
        if left is None:
            left = self.chance.choice(TURNS)
        if left:
            self.call_soon(self._arrive, line, left - 1)
        elif not (handle := line.popleft()).cancelled():
            handle._run()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return super().run_in_executor(executor, _later, self.chance.choice(PAUSES_S), func, *args)


def _later(pause_s: float, func: Callable[..., Any], *args: Any) -> Any:
    if pause_s:
        time.sleep(pause_s)
    return func(*args)


class ShuffledLoop(_Late):
    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        super().__init__(_Selector(self.chance))


class ShuffledVirtualTimeLoop(_Late, virtual_time.VirtualTimeLoop):
    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        super().__init__()


# The option of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = (
        "run asynchronous tests on a loop on which everything from outside comes late, as SEED decides"
    )
    parser.getgroup("shuffled loop").addoption("--shuffle-callbacks", metavar="SEED", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    if (seed := config.getoption("--shuffle-callbacks")) is not None:
        config.pluginmanager.register(Factories(seed))
        virtual_time.new_loop = lambda: ShuffledVirtualTimeLoop(_of_test(seed))


class Factories:
    """The answer to pytest-asyncio's question for a loop."""

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def pytest_asyncio_loop_factories(self, config: object, item: object) -> dict[str, Callable[[], object]]:
        return {"shuffled": lambda: ShuffledLoop(_of_test(self._seed))}


def _of_test(seed: str) -> str:
    """The seed of the present test."""
    return f"{seed} {os.environ.get('PYTEST_CURRENT_TEST', '').rpartition(' (')[0]}"
