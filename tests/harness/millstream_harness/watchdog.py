"""Ends the process of a test that hangs where no signal reaches, and names the test.

pytest-timeout interrupts a test by a signal, whose handler runs between two instructions of Python. A call in C that
does not return has none: `close` of uvloop's loop waits for as long as a handle is open, also for that of a connection
that it accepts meanwhile. So a thread watches, and ends the process: with pytest-xdist one worker, whose test has then
failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator
from time import monotonic
from typing import NoReturn

import pytest
import uvloop

GRACE_S = 60.0
"""How long after its time limit a test may end."""
CLOSE_S = 60.0
"""How long closing a loop may take."""


class Watchdog:
    """Ends the process when a limit is exceeded, with the stacks of all threads in `output`, a file descriptor."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._changed = threading.Condition()
        self._limits: dict[object, tuple[float, str]] = {}
        """When each ends, and what it limits."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextlib.contextmanager
    def limit(self, what: str, seconds: float) -> Iterator[None]:
        """`what` may take that long."""
        key = object()
        with self._changed:
            self._limits[key] = (monotonic() + seconds, what)
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._limits.pop(key, None)

    def stop(self) -> None:
        """Drop the limits in effect: somebody debugs."""
        with self._changed:
            self._limits.clear()

    def _watch(self) -> None:
        with self._changed:
            while True:
                end, what = min(self._limits.values(), default=(None, ""))
                if end is not None and monotonic() >= end:
                    self._end(what)
                self._changed.wait(None if end is None else end - monotonic())

    def _end(self, what: str) -> NoReturn:
        os.write(self._output, f"\nHANGS {what}: no signal reaches it, so its process ends\n".encode())
        faulthandler.dump_traceback(self._output, all_threads=True)
        os._exit(1)


class Hangs:
    """Limits each test, and the closing of loops in it."""

    def __init__(self, config: pytest.Config) -> None:
        """Called while nothing is captured, so that the last words are seen."""
        self._watchdog = Watchdog(os.dup(2))
        option = config.getoption("timeout", None)
        self._timeout_s = float(config.getini("timeout") or 0) if option is None else float(option)
        self._test = ""
        close = uvloop.Loop.close

        def watched(loop: uvloop.Loop) -> None:
            with self._watchdog.limit(f"{self._test}, in a loop's close", CLOSE_S):
                close(loop)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(uvloop.Loop, "close", watched)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        marker = item.get_closest_marker("timeout")
        timeout_s = float(marker.args[0]) if marker and marker.args else self._timeout_s
        self._test = item.nodeid
        if not timeout_s:
            return (yield)
        with self._watchdog.limit(item.nodeid, timeout_s + GRACE_S):
            return (yield)

    def pytest_enter_pdb(self) -> None:
        self._watchdog.stop()

    def pytest_unconfigure(self) -> None:
        self._patch.undo()
