"""Output to one client: bytes with `send`, ranges of segment files with `sendfile`, in order.

Neither the socket nor the disk may block: sendfile would wait for pages that are not in the page cache, and all other
clients with it. So the page cache is checked before each piece (`preadv2` with RWF_NOWAIT), and a thread reads missing
pages while the loop continues. After a number of bytes the other clients have their turn.

`blocked`: something waits for the socket or the disk; `drained` is called when everything has been sent after that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..log.files import STRIDE_BYTES, FileSlice
from ..runtime.stats import Stats

SEND_AT_BYTES = 256 * 1024
"""Bytes are handed to the socket when this many are ready, or when nothing follows at once."""
PIECE_BYTES = 1024 * 1024
"""Most bytes of one sendfile."""
SEND_AT_ONCE_BYTES = 8 * PIECE_BYTES
"""Bytes sent to one client before the others have their turn."""
LEAST_BYTES = 32 * 1024
"""Shorter pieces count as this many bytes, since system calls take time too."""
READ_AHEAD_BYTES = 4 * PIECE_BYTES
"""Bytes that the thread reads into the page cache at a time."""

_OF_THE_DISK = {errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.ENODATA}


def _nobody(*_: object) -> None:
    """Callback of a closed connection."""


class Outbox:
    """Errors are raised where `put` and `send` are called, and given to `failed` where the loop calls.

    An OSError with a file name is an error of the disk.
    """

    __slots__ = (
        "_bytes",
        "_drained",
        "_failed",
        "_fetched",
        "_loop",
        "_parts",
        "_sock",
        "_stats",
        "_watching",
        "blocked",
    )

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        stats: Stats,
        drained: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._stats = stats
        self._drained = drained
        self._failed = failed
        self._parts: deque[Any] = deque()
        self._bytes = 0
        self._fetched = 0
        """Bytes that a thread has just read from the disk, which need no second check."""
        self._watching = False
        self.blocked = False

    def put(self, part: Any) -> None:
        """Add bytes or a FileSlice; they are sent by `send`, or once there are many."""
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes >= SEND_AT_BYTES and not self.blocked:
            self.send()

    def put_all(self, parts: Iterable[Any], size: int) -> None:
        """`put` each part; `size` is their total in bytes."""
        self._parts.extend(parts)
        self._bytes += size
        if self._bytes >= SEND_AT_BYTES and not self.blocked:
            self.send()

    def send(self) -> None:
        """Send until everything is sent, or until the socket or the disk would block."""
        parts, sock = self._parts, self._sock
        missing: FileSlice | None = None
        room = SEND_AT_ONCE_BYTES
        while parts and room > 0:
            part = parts.popleft()
            try:
                if isinstance(part, FileSlice):
                    size = min(part.length, PIECE_BYTES)
                    try:
                        if self._fetched <= 0 and not part.file.is_cached(part.position, size):
                            missing = part
                            parts.appendleft(part)
                            break
                        count = os.sendfile(sock.fileno(), part.file.fileno(), part.position, size)
                    except OSError as error:
                        if error.errno in _OF_THE_DISK:  # not an error of the socket
                            error.filename = part.file.path
                        raise
                    if not count:
                        raise OSError(errno.EIO, "a segment file is shorter than its log says")
                    self._fetched -= count
                    if count < part.length:
                        parts.appendleft(part.after(count))
                else:
                    if parts:
                        part = self._join(part)
                    count = sock.send(part, socket.MSG_MORE if parts else 0)
                    if count < len(part):
                        parts.appendleft(memoryview(part)[count:])
            except (BlockingIOError, InterruptedError):
                parts.appendleft(part)
                break
            room -= max(count, LEAST_BYTES)
            self._bytes -= count
            self._stats.bytes_out += count
        self.blocked = bool(parts)
        self._watch(self.blocked and missing is None)
        if missing is not None:
            loading = self._loop.run_in_executor(None, load, missing)
            loading.add_done_callback(self._loaded)

    def _join(self, first: Any) -> Any:
        """The bytes up to the next range of a file, as one."""
        parts, joined = self._parts, [first]
        while parts and not isinstance(parts[0], FileSlice):
            joined.append(parts.popleft())
        return b"".join(joined) if len(joined) > 1 else first

    def _watch(self, wanted: bool) -> None:
        """Start or stop watching for a writable socket."""
        if wanted != self._watching:
            self._watching = wanted
            if wanted:
                self._loop.add_writer(self._sock, self._go_on)
            else:
                self._loop.remove_writer(self._sock)

    def _loaded(self, loading: asyncio.Future[None]) -> None:
        """The disk has responded; sendfile repeats any error, and can report it."""
        if not loading.cancelled():
            loading.exception()
        self._fetched = READ_AHEAD_BYTES
        if self._sock.fileno() >= 0:
            self._go_on()

    def _go_on(self) -> None:
        try:
            self.send()
            if not self.blocked:
                self._drained()
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Send nothing more; call it before the socket is closed."""
        self._watch(False)
        self._parts.clear()
        self._drained = self._failed = _nobody  # breaks a reference cycle


def load(part: FileSlice) -> None:
    """Load the beginning of a range into the page cache. Blocking."""
    fd, end = part.file.fileno(), part.position + min(part.length, READ_AHEAD_BYTES)
    os.posix_fadvise(fd, part.position, end - part.position, os.POSIX_FADV_WILLNEED)
    byte = [bytearray(1)]
    for position in (*range(part.position, end, STRIDE_BYTES), end - 1):
        os.preadv(fd, byte, position)
