"""Kafka's protocol on a socket of our own, for requests that librdkafka does not send.

Flexible versions (KIP-482) end each structure with tagged fields, and count lengths from one in variable integers.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from millstream import tls

TIMEOUT_S: Final = 3.0
MAX_ANSWER: Final = 1 << 20
API_VERSIONS: Final = 18
UNSUPPORTED_VERSION: Final = 35
NO_TAGS: Final = b"\0"


@contextlib.contextmanager
def connected(
    host: str, port: int, config: Mapping[str, Any], timeout_s: float = TIMEOUT_S
) -> Iterator[socket.socket]:
    """A connection with librdkafka's settings, except SASL. OSError or ValueError."""
    with contextlib.ExitStack() as opened:
        sock = opened.enter_context(socket.create_connection((host, port), timeout_s))
        if tls.is_used(config):
            sock = opened.enter_context(tls.context(config).wrap_socket(sock, server_hostname=host))
        yield sock


def call(
    sock: socket.socket,
    api: int,
    body: bytes = b"",
    version: int = 0,
    most: int = MAX_ANSWER,
    *,
    flexible: bool = False,
) -> bytes:
    """Send a request; returns the body of the response. OSError, ValueError or struct.error."""
    client = b"millstream"
    header = struct.pack(">hhih", api, version, 1, len(client)) + client
    request = header + (NO_TAGS if flexible else b"") + body
    sock.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(sock, 4))
    if not 10 <= size <= most:
        raise ValueError("its answer is no Kafka response")
    answer = _receive(sock, size)
    if answer[:4] != struct.pack(">i", 1):
        raise ValueError("its answer is no Kafka response")
    if not flexible:
        return answer[4:]
    reader = Reader(answer[4:])
    reader.skip_tags()
    return reader.rest


def api_versions(sock: socket.socket) -> dict[int, tuple[int, int]]:
    """Oldest and newest version by API key, from ApiVersions v0; a broker that refuses v0 names only ApiVersions."""
    error, number = struct.unpack_from(">hi", answer := call(sock, API_VERSIONS))
    if error not in (0, UNSUPPORTED_VERSION) or number < 0 or number * 6 > len(answer) - 6:
        raise ValueError("its answer is no ApiVersions response")
    return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", answer[6 : 6 + number * 6])}


def text(value: str) -> bytes:
    """A string of a request."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def compact_count(number: int) -> bytes:
    """The length of an array of a flexible request."""
    number += 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def compact_text(value: str | None) -> bytes:
    """A string of a flexible request, or null."""
    if value is None:
        return NO_TAGS
    encoded = value.encode()
    return compact_count(len(encoded)) + encoded


class Reader:
    """Reads the body of a response. struct.error if it is too short."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._body, self._position)
        self._position += struct.calcsize(layout)
        return values

    def text(self) -> str:
        """A string; "" for null."""
        (size,) = self.take(">h")
        return self._text(size)

    @property
    def rest(self) -> bytes:
        return self._body[self._position :]

    def compact_count(self) -> int:
        """The length of a flexible response's array; 0 for null."""
        return max(self._variable() - 1, 0)

    def compact_text(self) -> str:
        """A string of a flexible response; "" for null."""
        return self._text(self.compact_count())

    def skip_tags(self) -> None:
        for _ in range(self._variable()):
            self._variable()
            self.take(f">{self._variable()}s")

    def _text(self, size: int) -> str:
        (value,) = self.take(f">{max(size, 0)}s")
        return str(value, "utf-8", "replace")

    def _variable(self) -> int:
        value: int = 0
        for shift in range(0, 35, 7):
            byte: int = self.take(">B")[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise struct.error("a variable integer of more than five bytes")


def _receive(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := sock.recv(size - len(found))):
            raise ValueError("it closed the connection")
        found += part
    return found
