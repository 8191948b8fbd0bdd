"""SCRAM credentials of users that do not exist: they look like those of users that do.

The first message of a server tells a user's salt and iterations, before the client proves anything. So an unknown user
has the length of the salt and the iterations of some stored credential: of the next one on a ring on which each name
has a place, by an HMAC with the cluster's secret. All brokers agree, and if a credential is added or removed, only the
unknown users between it and its neighbour change.
"""

from __future__ import annotations

import hashlib
import hmac
from bisect import bisect, bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from millstream_kafka.scram_mechanism import MIN_ITERATIONS, ScramMechanism

from ..coordination.entities import Entity
from .scram_credentials import ScramCredential, ScramCredentials


class Shape(NamedTuple):
    """What a server tells of a credential, besides the salt itself."""

    salt_bytes: int = 20
    iterations: int = MIN_ITERATIONS


class InventedCredentials:
    """Those of one mechanism. Calls are made on the loop."""

    def __init__(self, mechanism: ScramMechanism, credentials: ScramCredentials, secret: bytes) -> None:
        """`secret` is the cluster's."""
        self._mechanism = mechanism
        self._credentials = credentials
        self._secret = secret
        self._ring: list[tuple[int, str]] = []
        """The stored credentials: their places, and their users."""
        self._shapes: dict[str, Shape] = {}
        credentials.on_change(self._changed)

    def of(self, user: str) -> ScramCredential:
        """A credential whose password nobody knows; reading it takes as long as reading a stored one."""
        salt_bytes, iterations = self._shape(user)
        salt = hashlib.shake_256(self._digest(user)).digest(salt_bytes)
        key = bytes(self._mechanism.size)
        return ScramCredential.from_text(
            self._mechanism, ScramCredential(salt, key, key, iterations).as_text()
        )

    def _shape(self, user: str) -> Shape:
        if not self._ring:
            return Shape()
        number = bisect(self._ring, (self._place(user), ""))
        return self._shapes[self._ring[number % len(self._ring)][1]]

    def _changed(self, entities: Iterable[Entity]) -> None:
        for user in {entity.user for entity in entities if entity.client_id is None}:
            if not isinstance(user, str):
                continue
            place = self._place(user), user
            number = bisect_left(self._ring, place)
            is_there = number < len(self._ring) and self._ring[number] == place
            credential = self._credentials.get(user, self._mechanism)
            if credential is not None:
                self._shapes[user] = Shape(len(credential.salt), credential.iterations)
                if not is_there:
                    self._ring.insert(number, place)
            elif is_there:
                del self._shapes[user], self._ring[number]

    def _digest(self, user: str) -> bytes:
        return hmac.digest(self._secret, f"{self._mechanism.label} {user}".encode(), "sha256")

    def _place(self, user: str) -> int:
        """A function of its own: the salt must not tell where the user is."""
        return int.from_bytes(hmac.digest(self._secret, b"place " + user.encode(), "sha256")[:8])
