"""Recognises clients that speak TLS or HTTP on a plaintext listener, and says what to change."""

from __future__ import annotations

MAGIC_BYTES = 8
"""First bytes of a connection, by which its protocol is recognised."""
_HANDSHAKE, _CLIENT_HELLO = b"\x16\x03", 1
_VERBS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")


def recognise(start: bytes, listener: str) -> str | None:
    """The protocol of a connection that begins with ``start``, and what to do about it; None if unknown.

    A TLS record begins with its type (22, a handshake) and version, then two bytes of length and the type of the
    handshake's message (RFC 8446, 4 and 5.1).
    """
    if start[:2] == _HANDSHAKE and start[5:6] == bytes([_CLIENT_HELLO]):
        return f"it speaks TLS, and the listener {listener} does not: set its security.protocol=PLAINTEXT"
    for verb in _VERBS:
        if start.startswith(verb[:MAGIC_BYTES]):
            return (
                f"it sends HTTP ({verb.decode().strip()}), and the listener {listener} speaks Kafka's protocol;"
                " health and metrics are served at http.listener"
            )
    return None
