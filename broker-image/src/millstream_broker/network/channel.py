"""Channels: the one place that touches the sockets of clients. Connections know bytes, files and events.

A channel never blocks. What would wait raises BlockingIOError, to be repeated when the channel becomes readable or
writable; a range of a file that is not ready raises NotCachedError, to be repeated once `load` has run in a thread.
While it runs, only `has_ended`, `arrived` and `close` may be called.

`PlainChannel` sends and receives bytes as they are, and files by sendfile. A channel that encrypts keeps the same
promises by other means. It is given to a connection after its handshake. It calls `readable` again while it holds
decrypted bytes. It encrypts files in `load`, a bounded part at a time. It counts bytes as sent only once the socket has
taken all that they became: until then it raises BlockingIOError, and the next call begins with the same bytes.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import termios
from array import array
from collections.abc import Callable
from typing import Protocol

from ..log.files import STRIDE_BYTES, FileSlice, NotCachedError

MORE = socket.MSG_MORE
"""Flag of `ClientChannel.send`: more bytes follow at once."""
READ_AHEAD_BYTES = 4 * 1024 * 1024
"""Bytes that a thread reads into the page cache at a time."""

_OF_THE_DISK = {errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.ENODATA}


class ClientChannel(Protocol):
    """The bytes of one connection, in both directions. All calls are made on the loop, except for `load`."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_reading(self) -> bool:
        """Whether `watch_readable` is in effect."""

    @property
    def receive(self) -> Callable[[memoryview], int]:
        """Receive into a buffer; returns the number of bytes, 0 at the end. Raises OSError, BlockingIOError."""

    @property
    def send(self) -> Callable[[bytes | memoryview, int], int]:
        """Send bytes, with MORE or 0; returns how many were taken. Raises OSError, BlockingIOError."""

    def receive_into(self, buffers: list[memoryview]) -> int:
        """Like `receive`, into several buffers, one after the other."""

    def send_file(self, part: FileSlice, most: int) -> int:
        """Send at most that many bytes of a file; returns how many were taken.

        Raises NotCachedError, BlockingIOError, and OSError, which has a file name if the disk is at fault.
        """

    def load(self, part: FileSlice) -> None:
        """Make the beginning of a range ready for `send_file`. Blocking: called in a thread."""

    def has_ended(self) -> bool:
        """Whether the client has closed the connection; False: it has sent bytes. Raises BlockingIOError if neither,
        and OSError."""

    def arrived(self) -> int:
        """Number of bytes that have arrived and are not yet received."""

    def watch_readable(self, readable: Callable[[], None]) -> None:
        """Call it whenever there are bytes to receive, until `unwatch_readable`."""

    def unwatch_readable(self) -> None: ...

    def watch_writable(self, writable: Callable[[], None]) -> None:
        """Call it whenever bytes can be sent, until `unwatch_writable`."""

    def unwatch_writable(self) -> None: ...

    def close(self) -> None:
        """Stop watching and close. A second call changes nothing."""


class PlainChannel:
    """Sends and receives bytes over TCP, unencrypted."""

    __slots__ = (
        "_is_watching_writable",
        "_loaded",
        "_loop",
        "_sock",
        "is_closed",
        "is_reading",
        "receive",
        "send",
    )

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop
        self.is_closed = False
        self.is_reading = False
        self._is_watching_writable = False
        self._loaded = 0
        """Bytes that a thread has just loaded, which need no second check."""
        # The socket's own methods: a wrapper would add a call to each request.
        self.receive: Callable[[memoryview], int] = sock.recv_into
        self.send: Callable[[bytes | memoryview, int], int] = sock.send

    def receive_into(self, buffers: list[memoryview]) -> int:
        return self._sock.recvmsg_into(buffers)[0]

    def send_file(self, part: FileSlice, most: int) -> int:
        size = min(part.length, most)
        try:
            if self._loaded <= 0 and not part.file.is_cached(part.position, size):
                raise NotCachedError(
                    part.file.path
                )  # sendfile would wait for the disk, and all other clients with it
            count = os.sendfile(self._sock.fileno(), part.file.fileno(), part.position, size)
        except OSError as error:
            if error.errno in _OF_THE_DISK:
                error.filename = part.file.path
            raise
        if not count:
            raise OSError(errno.EIO, "a segment file is shorter than its log says")
        self._loaded -= count
        return count

    def load(self, part: FileSlice) -> None:
        try:
            read_ahead(part)
        finally:  # sendfile repeats any error, and can report it
            self._loaded = READ_AHEAD_BYTES

    def has_ended(self) -> bool:
        return not self._sock.recv(1, socket.MSG_PEEK)

    def arrived(self) -> int:
        count = array("i", [0])
        fcntl.ioctl(self._sock, termios.FIONREAD, count)
        return count[0]

    def watch_readable(self, readable: Callable[[], None]) -> None:
        self.is_reading = True
        self._loop.add_reader(self._sock, readable)

    def unwatch_readable(self) -> None:
        self.is_reading = False
        self._loop.remove_reader(self._sock)

    def watch_writable(self, writable: Callable[[], None]) -> None:
        self._is_watching_writable = True
        self._loop.add_writer(self._sock, writable)

    def unwatch_writable(self) -> None:
        self._is_watching_writable = False
        self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if self.is_closed:
            return
        if self.is_reading:
            self.unwatch_readable()
        if self._is_watching_writable:
            self.unwatch_writable()
        self.is_closed = True
        self._sock.close()


def accept(sock: socket.socket) -> tuple[socket.socket, str, int]:
    """The next client of a listening socket, with its address. Raises OSError, BlockingIOError."""
    accepted, address = sock.accept()
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return accepted, address[0], address[1]


def read_ahead(part: FileSlice) -> None:
    """Read the beginning of a range into the page cache. Blocking."""
    fd, end = part.file.fileno(), part.position + min(part.length, READ_AHEAD_BYTES)
    os.posix_fadvise(fd, part.position, end - part.position, os.POSIX_FADV_WILLNEED)
    byte = [bytearray(1)]
    for position in (*range(part.position, end, STRIDE_BYTES), end - 1):
        os.preadv(fd, byte, position)
