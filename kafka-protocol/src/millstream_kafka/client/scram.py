"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), as messages in and out; no I/O.

    first()        client-first-message
    final(server)  server-first-message  -> client-final-message
    verify(server) server-final-message: proves that the server knows the password, too

As in Kafka, names and passwords are plain UTF-8 without SASLprep, and there is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from ..scram_mechanism import MIN_ITERATIONS, ScramMechanism
from .errors import one_line

MECHANISMS: Final = {mechanism.label: mechanism for mechanism in ScramMechanism}
MAX_ITERATIONS: Final = 100_000
"""Stored credentials have fewer: a hostile server must not keep the client busy for long."""
_GS2_HEADER: Final = "n,,"


class ScramError(ValueError):
    """The server's message violates the RFC, or does not prove that it knows the password."""


class ScramClient:
    """One exchange; call its methods once, in order."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str = "") -> None:
        self._mechanism = MECHANISMS[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return (_GS2_HEADER + self._bare).encode()

    def final(self, server: bytes) -> bytes:
        """Takes milliseconds of CPU for thousands of rounds of HMAC. Raises ScramError."""
        said = _attributes(server)
        nonce, salt, iterations = said.get("r", ""), _base64(said.get("s", "")), _number(said.get("i", ""))
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("its nonce does not continue ours")
        if not salt:
            raise ScramError("it sent no salt")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramError(
                f"it requires {iterations} iterations: {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
            )
        salted = hashlib.pbkdf2_hmac(self._mechanism.digest, self._password, salt, iterations)
        client_key = self._mechanism.hmac(salted, b"Client Key")
        stored_key = self._mechanism.hash(client_key)
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        message = ",".join((self._bare, server.decode(), without_proof)).encode()
        proof = bytes(
            one ^ other
            for one, other in zip(client_key, self._mechanism.hmac(stored_key, message), strict=True)
        )
        self._signature = self._mechanism.hmac(self._mechanism.hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server: bytes) -> None:
        """Raises ScramError."""
        said = _attributes(server)
        if error := said.get("e"):
            raise ScramError(f"it refused the proof: {one_line(error)}")
        if not self._signature or not hmac.compare_digest(_base64(said.get("v", "")), self._signature):
            raise ScramError("it does not prove that it knows the password: another server may pose as it")


def _attributes(message: bytes) -> dict[str, str]:
    try:
        pairs = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError:
        raise ScramError("its message is not UTF-8") from None
    if any(len(name) != 1 or not equals for name, equals, _ in pairs):
        raise ScramError("its message is not one of SCRAM")
    if pairs[0][0] == "m":
        raise ScramError("it requires an extension that is not known here")
    return {name: value for name, _, value in reversed(pairs)}


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("its message is not one of SCRAM") from None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
