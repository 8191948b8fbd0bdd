"""Stops at any file operation, by Python's audit events, which come before each open, rename and unlink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVENTS = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "open")
_listener: list[Callable[[], None]] = []


def _audit(event: str, args: tuple[object, ...]) -> None:
    if _listener and event in _EVENTS:
        _listener[0]()


sys.addaudithook(_audit)


@contextmanager
def before_each_file_operation(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` before each; its own file operations do not count."""

    def listen() -> None:
        _listener.clear()
        act()
        _listener.append(listen)

    _listener.append(listen)
    try:
        yield
    finally:
        _listener.clear()
