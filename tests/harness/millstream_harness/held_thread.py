"""A gate before a function: the test decides how long a calling thread waits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

LONGEST_S = 60


class HeldThread:
    """Calls of ``owner.name`` wait until the gate opens, then proceed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.threads: list[threading.Thread] = []
        """The threads that called it."""
        self._called, self._opened = threading.Event(), threading.Event()
        original = getattr(owner, name)

        def held_up(*args: Any, **more: Any) -> Any:
            self.threads.append(threading.current_thread())
            self._called.set()
            if threading.current_thread() is not threading.main_thread():  # which would wait for itself
                assert self._opened.wait(LONGEST_S)
            return original(*args, **more)

        monkeypatch.setattr(owner, name, held_up)

    async def reached(self) -> None:
        """Wait until a thread is at the gate."""
        assert await asyncio.to_thread(self._called.wait, LONGEST_S)

    def open(self) -> None:
        self._opened.set()

    @property
    def was_called_on_the_loop(self) -> bool:
        """Whether the test's own thread has called it, which runs the loop."""
        return threading.main_thread() in self.threads
