"""Recognises clients that speak another protocol than their listener, and says what to change."""

from __future__ import annotations

from ..config.config import Listener

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


def recognise_plaintext(start: bytes, listener: Listener) -> str | None:
    """What a client that begins with ``start`` speaks on a listener with TLS; None for TLS.

    The size of a request of Kafka begins with 0 to 6 (socket.request.max.bytes), a TLS record with its type, 22.
    """
    if start[0] == _HANDSHAKE[0]:
        return None
    for verb in _VERBS:
        if start.startswith(verb[:MAGIC_BYTES]):
            return (
                f"it sends HTTP ({verb.decode().strip()}), and the listener speaks Kafka's protocol over TLS;"
                " health and metrics are served at http.listener"
            )
    spoken = "Kafka's protocol in plain text" if start[0] == 0 else "something else than TLS"
    return f"it speaks {spoken}, and the listener requires TLS: set its security.protocol={listener.protocol}"
