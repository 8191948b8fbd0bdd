"""Writes the lines of the audit log to stdout or a file: in a thread, so that a slow reader or disk delays no request.

At most MOST_WAITING lines wait for the thread; further ones are lost, and counted, and so are lines that cannot be
written. A file is for the broker's user only. When it would exceed its limit, it is renamed to PATH.1, which replaces
the last one: so both together have twice the limit at most. A file that was renamed or removed by others is opened
again. A line that does not fit on a full disk is taken back whole.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

MOST_WAITING = 10_000
END_S = 2.0
"""How long the end of the broker waits for the last lines."""

log = logging.getLogger(__name__)


def to_stdout(data: bytes) -> None:
    """Raises OSError, ValueError."""
    sys.stdout.write(data.decode("ascii"))
    sys.stdout.flush()


class AuditFile:
    """The file at a path, and the one before it."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Raises OSError."""
        self.path = path
        self._max_bytes = max_bytes
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )

    def write(self, data: bytes) -> None:
        """Raises OSError: then nothing of the data stays."""
        size = self._present_size()
        if size and size + len(data) > self._max_bytes:
            os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
            self._reopen()
            size = 0
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, size)
            raise

    def _present_size(self) -> int:
        """Of the file at the path, which is opened again if it is another one."""
        own = os.fstat(self._fd)
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            self._reopen()
            own = os.fstat(self._fd)
        return own.st_size

    def _reopen(self) -> None:
        before, self._fd = self._fd, self._open()
        os.close(before)

    def close(self) -> None:
        os.close(self._fd)


class Writer:
    """Lines on their way to `write`."""

    def __init__(self, write: Callable[[bytes], None], close: Callable[[], None] = lambda: None) -> None:
        """`write` may block, and raise OSError or ValueError; `close` runs after the last line."""
        self._write, self._close = write, close
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self.lost = 0
        """Lines that waited for too long a queue, or could not be written."""

    def put(self, line: bytes) -> None:
        """Returns at once."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING or self._is_closing:
                self.lost += 1
                return
            self._waiting.append(line)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        is_failing = False
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                lines, self._waiting = self._waiting, deque()
            if not lines:
                break
            for line in lines:
                try:
                    self._write(line)
                except (OSError, ValueError) as error:
                    with self._changed:
                        self.lost += 1
                    if not is_failing:
                        log.error("the audit log cannot be written, and loses events: %s", error)
                    is_failing = True
                else:
                    if is_failing:
                        log.warning("the audit log is written again")
                    is_failing = False
        self._close()

    def close(self) -> None:
        """Write the last lines, if that takes no longer than END_S. Blocking. A second call changes nothing."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify()
        if self._thread is None:
            self._close()
        else:
            self._thread.join(END_S)
