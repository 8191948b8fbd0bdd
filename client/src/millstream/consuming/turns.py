"""A lock that threads get in turn: a thread that has just released it comes after waiting ones."""

from __future__ import annotations

import threading
from types import TracebackType


class Turns:
    """A fair reentrant lock. Python's own locks let a thread that loops take them again and again."""

    def __init__(self) -> None:
        self._next, self._lock = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            with self._next:
                self._lock.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()
