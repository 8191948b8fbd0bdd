"""Logs in on a socket of our own, with librdkafka's settings: PLAIN (RFC 4616) and SCRAM (RFC 5802)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Generator, Mapping
from typing import Any, Final

from millstream import raw, sasl

SASL_AUTHENTICATE: Final = 36
SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MOST_ITERATIONS: Final = 1_000_000
NO_SCRAM: Final = "its reply is no SCRAM message"
Messages = Generator[bytes, bytes, None]


def log_in(sock: socket.socket, config: Mapping[str, Any]) -> None:
    """Log in if the settings use SASL. OSError, ValueError or struct.error."""
    if not sasl.is_used(config):
        return
    mechanism = sasl.mechanism(config).upper()
    user, password = (str(config.get(f"sasl.{key}", "")) for key in ("username", "password"))
    if mechanism == "PLAIN":
        messages = _plain(user, password)
    elif mechanism in SCRAM:
        messages = scram(user, password, SCRAM[mechanism], secrets.token_urlsafe(24))
    else:
        allowed = ", ".join(("PLAIN", *SCRAM))
        raise ValueError(f"this command cannot log in with sasl.mechanism={mechanism}, only with {allowed}")
    answer = raw.call(sock, sasl.SASL_HANDSHAKE, raw.text(mechanism), 1)
    (error,) = raw.Reader(answer).take(">h")
    if error:
        raise ValueError(f"it does not have the mechanism {mechanism}")
    message = next(messages)
    while True:
        body = struct.pack(">i", len(message)) + message
        reader = raw.Reader(raw.call(sock, SASL_AUTHENTICATE, body))
        (error,) = reader.take(">h")
        why = reader.text()
        if error:
            raise ValueError(f"the login failed: {why or f'error {error}'}")
        (size,) = reader.take(">i")
        (reply,) = reader.take(f">{max(size, 0)}s")
        try:
            message = messages.send(reply)
        except StopIteration:
            return


def _plain(user: str, password: str) -> Messages:
    yield f"\0{user}\0{password}".encode()


def scram(user: str, password: str, digest: str, nonce: str) -> Messages:
    """The client's messages, each after the server's reply to the one before. ValueError for a wrong reply."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    reply = yield f"n,,{first}".encode()
    both, salt, rounds = _values(reply, "r", "s", "i")
    if not both.startswith(nonce) or not 0 < (iterations := int(rounds)) <= MOST_ITERATIONS:
        raise ValueError(NO_SCRAM)
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(salt), iterations)
    final = f"c=biws,r={both}"
    signed = f"{first},{reply.decode()},{final}".encode()
    key = _sign(salted, b"Client Key", digest)
    signature = _sign(hashlib.new(digest, key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    reply = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    expected = _sign(_sign(salted, b"Server Key", digest), signed, digest)
    (verifier,) = _values(reply, "v")
    if not hmac.compare_digest(base64.b64decode(verifier), expected):
        raise ValueError("it does not know the password: it is not the broker that it claims to be")


def _sign(key: bytes, text: bytes, digest: str) -> bytes:
    return hmac.new(key, text, digest).digest()


def _values(message: bytes, *names: str) -> list[str]:
    found = dict(part.partition("=")[::2] for part in message.decode().split(","))
    if not found.keys() >= set(names):
        raise ValueError(NO_SCRAM)
    return [found[name] for name in names]
