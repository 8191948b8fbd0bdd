"""The mechanisms of SCRAM (RFC 5802, RFC 7677), for clients, brokers and administration (KIP-84, KIP-554)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from enum import IntEnum

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16_384
"""Kafka's range of a stored credential."""


class ScramMechanism(IntEnum):
    """By their numbers in the protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def label(self) -> str:
        """As in SaslHandshake, in sasl.mechanism, and as the key of a user's configuration."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash function, as hashlib names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.digest)

    def hash(self, message: bytes) -> bytes:
        return hashlib.new(self.digest, message).digest()

    def keys(self, salted_password: bytes) -> tuple[bytes, bytes]:
        """Stored key and server key (RFC 5802, 3): they verify a proof of the password, but do not compute it."""
        return self.hash(self.hmac(salted_password, b"Client Key")), self.hmac(salted_password, b"Server Key")

    @property
    def size(self) -> int:
        """Bytes of a key."""
        return hashlib.new(self.digest).digest_size


def stored(salt: bytes, stored_key: bytes, server_key: bytes, iterations: int) -> str:
    """A credential as brokers store it, in the configuration of its user (KIP-84)."""
    parts = {"salt": salt, "stored_key": stored_key, "server_key": server_key}
    texts = [f"{name}={base64.b64encode(value).decode()}" for name, value in parts.items()]
    return ",".join([*texts, f"iterations={iterations}"])
