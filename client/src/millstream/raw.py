"""ApiVersions and SaslHandshake in version 0: what a listener says to anybody, before TLS or SASL are known to fit.

With them the library explains why librdkafka does not connect; it has no other code for Kafka's messages.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

TIMEOUT_S: Final = 3.0
MAX_ANSWER: Final = 1 << 20
API_VERSIONS: Final = 18
UNSUPPORTED_VERSION: Final = 35


def call(sock: socket.socket, api: int, body: bytes = b"") -> bytes:
    """Send a request; returns the body of the response. OSError, ValueError or struct.error."""
    client = b"millstream"
    request = struct.pack(">hhih", api, 0, 1, len(client)) + client + body
    sock.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(sock, 4))
    if not 10 <= size <= MAX_ANSWER:
        raise ValueError("its answer is no Kafka response")
    answer = _receive(sock, size)
    if answer[:4] != struct.pack(">i", 1):
        raise ValueError("its answer is no Kafka response")
    return answer[4:]


def api_versions(sock: socket.socket) -> dict[int, tuple[int, int]]:
    """Oldest and newest version by API key, from ApiVersions v0; a broker that refuses v0 names only ApiVersions."""
    error, number = struct.unpack_from(">hi", answer := call(sock, API_VERSIONS))
    if error not in (0, UNSUPPORTED_VERSION) or number < 0 or number * 6 > len(answer) - 6:
        raise ValueError("its answer is no ApiVersions response")
    return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", answer[6 : 6 + number * 6])}


def _receive(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := sock.recv(size - len(found))):
            raise ValueError("it closed the connection")
        found += part
    return found
