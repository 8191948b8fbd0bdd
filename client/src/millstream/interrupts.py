"""Ctrl-C and SIGTERM as KeyboardInterrupt: at once, or where work that must not be cut checks for it.

librdkafka's callbacks may swallow exceptions of a signal's handler, and an interrupted callback miscounts. So work with
callbacks holds interrupts back (`held`) and checks for them itself (`check`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


class Interrupts:
    """Without `install`, Ctrl-C is Python's own, and nothing is held back."""

    def __init__(self) -> None:
        self._pending = False
        self._held = _Held()

    def install(self) -> None:
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, self._arrived)

    def _arrived(self, number: int, frame: object) -> None:
        self._pending = True
        if not self._held.entered:
            raise KeyboardInterrupt

    @property
    def held(self) -> AbstractContextManager[None]:
        """A context in which interrupts only become pending."""
        return self._held

    def check(self) -> None:
        """Raise KeyboardInterrupt if an interrupt is pending."""
        if self._pending:
            raise KeyboardInterrupt

    def clear(self) -> None:
        """Forget the pending interrupt: the next one is another."""
        self._pending = False

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with a check after each."""
        for item in items:
            yield item
            self.check()


class _Held(AbstractContextManager[None]):
    """As light as possible: `produce` enters it for every record."""

    __slots__ = ("entered",)

    def __init__(self) -> None:
        self.entered = False

    def __enter__(self) -> None:
        self.entered = True

    def __exit__(self, *_: object) -> None:
        self.entered = False
