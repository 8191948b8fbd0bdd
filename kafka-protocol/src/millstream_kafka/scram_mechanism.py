"""The mechanisms of SCRAM (RFC 5802, RFC 7677), for clients, brokers and administration (KIP-84, KIP-554)."""

from __future__ import annotations

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

    @property
    def size(self) -> int:
        """Bytes of a key."""
        return hashlib.new(self.digest).digest_size
