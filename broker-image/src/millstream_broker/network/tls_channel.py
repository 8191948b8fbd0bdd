"""A channel with TLS: OpenSSL between two buffers in memory, whose encrypted sides go to and come from the socket.

Bytes of responses are encrypted as they are sent. Ranges of files are read and encrypted in `load`, in a thread, a
slice at a time; small ones that are in the page cache at once, since a thread would take longer. The socket takes all
that a slice became before the next is encrypted, so a client that reads slowly holds one slice in memory.

While `load` runs, nothing else uses OpenSSL: `has_ended` and `arrived` look only at the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from ..log.files import FileSlice, NotCachedError
from .channel import PlainChannel

SLICE_BYTES = 256 * 1024
"""Most bytes to encrypt at a time."""
AT_ONCE_BYTES = 32 * 1024
"""Most bytes of a file to read and encrypt without a thread."""
MAX_ANSWERS_BYTES = 64 * 1024
"""Most bytes of answers to the client's TLS messages that may wait for the client."""
_RECEIVE_BYTES = 256 * 1024
_received = memoryview(bytearray(_RECEIVE_BYTES))
"""Encrypted bytes of all connections: they are handed to OpenSSL before the next receive."""
MOST_WITHOUT_DATA = 64 * 1024
"""Most encrypted bytes in a row without data: a record has 16 KB; updates of keys take few bytes, but much time."""
_ALERT, _APPLICATION_DATA = 21, 23
_ENCRYPTED_ALERT = bytes((_APPLICATION_DATA, 3, 3, 0, 19))
"""The beginning of an alert's record in TLS 1.3: an alert of two bytes, its type, and a tag of sixteen bytes."""


class TlsChannel(PlainChannel):
    """Sends and receives over TLS, after the handshake."""

    __slots__ = (
        "_again",
        "_decrypt",
        "_encrypted",
        "_failure",
        "_incoming",
        "_is_full",
        "_is_loading",
        "_outgoing",
        "_readable",
        "_taken",
        "_tls",
        "_without_data",
    )

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        super().__init__(sock, loop)
        self._tls = tls
        self._decrypt = cast(Callable[[int, memoryview], int], tls.read)
        self._incoming = incoming
        self._outgoing = outgoing
        self._encrypted = memoryview(b"")
        """What the socket has not taken yet."""
        self._taken = 0
        """Bytes of the caller that are encrypted and not yet counted as sent."""
        self._failure: OSError | None = None
        """Of the last `load`; sending raises it."""
        self._is_loading = False
        self._is_full = True
        """Whether there may be bytes that the socket no longer has: after the handshake, and after a full buffer."""
        self._readable: Callable[[], None] | None = None
        self._again: asyncio.Handle | None = None
        self._without_data = 0
        """Encrypted bytes since the last data."""
        self.receive = self._receive
        self.send = self._send

    # Receiving

    def _receive(self, buffer: memoryview) -> int:
        """As many bytes as there are, up to the size of the buffer. Raises OSError for bytes without any data."""
        count, room = 0, len(buffer)
        self._is_full = False
        while count < room:
            try:
                if not (decrypted := self._decrypt(room - count, buffer[count:])):
                    return count  # the client has announced its end
                count += decrypted
                self._without_data = 0
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    self._answer()
                if count:
                    return count
                if self._without_data > MOST_WITHOUT_DATA:
                    raise OSError(
                        errno.EPROTO, f"{self._without_data} bytes of TLS without any data"
                    ) from None
                size = self._sock.recv_into(_received)
                if not size:
                    return 0
                self._without_data += size
                self._incoming.write(_received[:size])
            except ssl.SSLZeroReturnError:
                return count
        self._is_full = True
        self._call_again()
        return count

    def _answer(self) -> None:
        """Send what OpenSSL answers to the client's own messages, such as an update of keys. Raises OSError."""
        if self._outgoing.pending > MAX_ANSWERS_BYTES:
            raise OSError(errno.EPROTO, "it sends TLS messages and does not read the answers")
        if not self._encrypted:
            self._encrypted = memoryview(self._outgoing.read())
            with contextlib.suppress(BlockingIOError):  # then it goes before the next response
                self._flush()

    def receive_into(self, buffers: list[memoryview]) -> int:
        return self._receive(next(buffer for buffer in buffers if len(buffer)))

    def _call_again(self) -> None:
        if self._is_full and self._again is None:
            self._again = self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._again = None
        if self._readable is not None:
            self._readable()

    def watch_readable(self, readable: Callable[[], None]) -> None:
        self._readable = readable
        super().watch_readable(readable)
        self._call_again()

    def unwatch_readable(self) -> None:
        self._readable = None
        super().unwatch_readable()

    def has_ended(self) -> bool:
        """An alert is an end as well: clients announce by one that they close."""
        if self._is_full:
            return False
        start = self._sock.recv(32, socket.MSG_PEEK)
        if not start:
            return True
        return start[0] == _ALERT or (len(start) == 24 and start.startswith(_ENCRYPTED_ALERT))

    def arrived(self) -> int:
        decrypted = 0 if self._is_loading else self._tls.pending()
        return super().arrived() + self._incoming.pending + decrypted

    # Sending

    def _flush(self) -> None:
        """Raises BlockingIOError until the socket has taken everything."""
        while self._encrypted:
            self._encrypted = self._encrypted[self._sock.send(self._encrypted) :]

    def _flushed(self) -> int:
        """Bytes that were encrypted, once they are sent."""
        self._flush()
        count, self._taken = self._taken, 0
        return count

    def _encrypt(self, data: bytes | memoryview) -> None:
        self._taken = self._tls.write(data)
        fresh = self._outgoing.read()
        self._encrypted = memoryview(bytes(self._encrypted) + fresh if self._encrypted else fresh)

    def _send(self, data: bytes | memoryview, flags: int) -> int:
        if not self._taken:
            if not data:
                return 0
            self._encrypt(memoryview(data)[:SLICE_BYTES])
        return self._flushed()

    def send_file(self, part: FileSlice, most: int) -> int:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._taken:
            size = min(part.length, most)
            if size > AT_ONCE_BYTES or not part.file.is_cached(part.position, size):
                raise NotCachedError(part.file.path)
            self._encrypt(_read(part, size))
        return self._flushed()

    def load(self, part: FileSlice) -> None:
        self._is_loading = True
        try:
            self._encrypt(_read(part, min(part.length, SLICE_BYTES)))
        except OSError as error:
            self._failure = error
        finally:
            self._is_loading = False

    def close(self) -> None:
        if self.is_closed:
            return
        if self._again is not None:
            self._again.cancel()
        if not (self._is_loading or self._encrypted):
            with contextlib.suppress(OSError):  # the announcement is a courtesy
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._tls.unwrap()
                self._sock.send(self._outgoing.read())
        super().close()
        # Its own methods refer to it: OpenSSL's memory would stay until a collection of garbage, which counts objects.
        self.receive = self.send = _gone
        self._readable = None


def _gone(*_: object) -> int:
    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


def _read(part: FileSlice, size: int) -> bytes:
    """Raises OSError with the file's name."""
    try:
        data = os.pread(part.file.fileno(), size, part.position)
    except OSError as error:
        error.filename = part.file.path
        raise
    if not data:
        raise OSError(errno.EIO, "a segment file is shorter than its log says", part.file.path)
    return data
