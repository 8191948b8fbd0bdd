"""What goes out to one client: bytes with `send`, ranges of segment files with `sendfile`, in the order given.

The socket does not block, and neither may the disk: sendfile would wait for pages that are not in the page cache, and
with it every other client. So before each piece the cache is asked (`preadv2` with RWF_NOWAIT), and what is missing
is fetched by a thread while the loop goes on. And after so many bytes the others have their turn.

`blocked` says that something waits for the socket or the disk; `drained` is called when all has gone out after that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from .log.files import STRIDE_BYTES, FileSlice
from .stats import Stats

SEND_AT_BYTES = 256 * 1024
"""Bytes are handed to the socket when so many are ready, or when their sender says that nothing follows at once."""
PIECE_BYTES = 1024 * 1024
"""The most that one sendfile sends."""
SEND_AT_ONCE_BYTES = 8 * PIECE_BYTES
"""What one client is sent before the others have their turn."""
LEAST_BYTES = 32 * 1024
"""What a shorter piece counts for: system calls, too, take time."""
READ_AHEAD_BYTES = 4 * PIECE_BYTES
"""What the thread fetches into the page cache at a time."""

_OF_THE_DISK = {errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.ENODATA}


def _nobody(*_: object) -> None:
    """Is told where the connection is closed."""


class Outbox:
    """Errors are raised where `put` and `send` are called, and given to `failed` where the loop calls.

    An OSError that names a file is the disk's, which cannot read it.
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
        """Bytes that a thread has just fetched from the disk: not asked for again, whatever the cache says."""
        self._watching = False
        self.blocked = False

    def put(self, part: Any) -> None:
        """Add bytes or a FileSlice; `send` sends them, or much being there does."""
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes >= SEND_AT_BYTES and not self.blocked:
            self.send()

    def put_all(self, parts: Iterable[Any], size: int) -> None:
        """`put` each of them; they have so many bytes together."""
        self._parts.extend(parts)
        self._bytes += size
        if self._bytes >= SEND_AT_BYTES and not self.blocked:
            self.send()

    def send(self) -> None:
        """Send until all is sent, or until the socket or the disk has to be waited for."""
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
                        if error.errno in _OF_THE_DISK:  # and not of the socket
                            error.filename = part.file.path
                        raise
                    if not count:
                        raise OSError(errno.EIO, "a segment file is shorter than its log says")
                    self._fetched -= count
                    if count < part.length:
                        parts.appendleft(
                            replace(part, position=part.position + count, length=part.length - count)
                        )
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
        """Be called when the socket takes more, or not."""
        if wanted != self._watching:
            self._watching = wanted
            if wanted:
                self._loop.add_writer(self._sock, self._go_on)
            else:
                self._loop.remove_writer(self._sock)

    def _loaded(self, loading: asyncio.Future[None]) -> None:
        """The disk has answered; an error shows again in sendfile, which then has somebody to tell."""
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
        """Before the socket is closed: nothing more goes out."""
        self._watch(False)
        self._parts.clear()
        self._drained = self._failed = _nobody  # else it would be freed by the collector of garbage alone


def load(part: FileSlice) -> None:
    """Bring the beginning of a range into the page cache. Blocking."""
    fd, end = part.file.fileno(), part.position + min(part.length, READ_AHEAD_BYTES)
    os.posix_fadvise(fd, part.position, end - part.position, os.POSIX_FADV_WILLNEED)
    byte = [bytearray(1)]
    for position in (*range(part.position, end, STRIDE_BYTES), end - 1):
        os.preadv(fd, byte, position)
