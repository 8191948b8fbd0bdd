"""An operator's process that ends at one of its writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Died(BaseException):
    """The operator's process has ended."""


class Life:
    """A process that ends before, or right after, its nth write."""

    def __init__(self, writes: int | None = None, *, after: bool = False) -> None:
        self.left, self.after = writes, after

    def write(self, deed: Callable[[], Any]) -> Any:
        if self.left is None:
            return deed()
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Died
        done = deed()
        if self.left == 0:
            raise Died
        return done
