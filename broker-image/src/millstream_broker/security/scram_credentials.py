"""SCRAM credentials as Kafka stores them, in the configuration of their users (KIP-84):

    SCRAM-SHA-256: salt=…,stored_key=…,server_key=…,iterations=4096        (Base64)

They let a server verify a proof of the password, but not compute it. Reading raises ValueError, without the value.

While a password is replaced, the former one may stay valid for some time, so that no client fails that has not got the
new one yet. Kafka has nothing of the kind, and ignores the entry:

    SCRAM-SHA-256.previous: as above, with the same salt and iterations, and until=…       (ms since 1970)
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from millstream_kafka.scram_mechanism import MIN_ITERATIONS, ScramMechanism, stored

from ..coordination.coordination import Coordination
from ..coordination.entities import Entity

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server knows of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_salted_password(
        cls, mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int
    ) -> ScramCredential:
        """From what clients send, after they have run the expensive function (RFC 5802, 3)."""
        return cls(salt, *mechanism.keys(salted_password), iterations)

    def as_text(self) -> str:
        return stored(self.salt, self.stored_key, self.server_key, self.iterations)

    @classmethod
    def from_text(cls, mechanism: ScramMechanism, text: str) -> ScramCredential:
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored_key, server_key = (
                base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            iterations = int(parts["iterations"])
        except (KeyError, ValueError, binascii.Error):
            raise ValueError("expected salt, stored_key, server_key and iterations") from None
        if len(stored_key) != mechanism.size or len(server_key) != mechanism.size or not salt:
            raise ValueError(f"expected a salt, and keys of {mechanism.size} bytes")
        if iterations < MIN_ITERATIONS:
            raise ValueError(f"{iterations} iterations: expected {MIN_ITERATIONS} or more")
        return cls(salt, stored_key, server_key, iterations)


@dataclass(frozen=True, slots=True)
class PreviousCredential:
    """That of a password that was replaced, and the end of its validity in ms since 1970, by brokers' clocks."""

    credential: ScramCredential
    until_ms: int

    def as_text(self) -> str:
        return f"{self.credential.as_text()},until={self.until_ms}"

    @classmethod
    def from_text(cls, mechanism: ScramMechanism, text: str) -> PreviousCredential:
        rest, found, until = text.rpartition(",until=")
        if not found or not (until.isascii() and until.isdecimal()):
            raise ValueError("expected until, in ms")
        return cls(ScramCredential.from_text(mechanism, rest), int(until))


class ScramCredentials:
    """The credentials in coordination, as this broker knows them."""

    def __init__(self, coordination: Coordination, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._coordination = coordination
        self._clock = clock
        self._reported: dict[tuple[str, ScramMechanism], str] = {}

    def on_change(self, changed: Callable[[Iterable[Entity]], None]) -> None:
        """Call it with all entities now, and with those that may have changed after each change, on the loop."""
        self._coordination.on_entities.append(changed)
        changed(list(self._coordination.entity_configs))

    def users(self) -> list[str]:
        """All users that have any."""
        return [
            entity.user
            for entity, config in self._coordination.entity_configs.items()
            if isinstance(entity.user, str) and entity.client_id is None and _is_any_in(config)
        ]

    def of(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        """Those of a user; unreadable ones are reported, once, and do not count."""
        config = self._coordination.entity_configs.get(Entity(user=user), {})
        found = {}
        for mechanism in ScramMechanism:
            if (text := config.get(mechanism.label)) is not None:
                try:
                    found[mechanism] = ScramCredential.from_text(mechanism, text)
                except ValueError as error:
                    self._report(user, mechanism, text, error)
        return found

    def _report(self, user: str, mechanism: ScramMechanism, text: str, error: ValueError) -> None:
        if self._reported.get((user, mechanism)) != text:
            self._reported[user, mechanism] = text
            log.error("ignoring the %s credential of user %r: %s", mechanism.label, user, error)

    def get(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self.of(user).get(mechanism)

    def valid(self, user: str, mechanism: ScramMechanism) -> tuple[ScramCredential, ...]:
        """The credential of a user, then that of the former password while it is valid; they share salt and
        iterations."""
        credential = self.get(user, mechanism)
        if credential is None:
            return ()
        config = self._coordination.entity_configs.get(Entity(user=user), {})
        if (text := config.get(_previous(mechanism))) is None:
            return (credential,)
        try:
            previous = PreviousCredential.from_text(mechanism, text)
        except ValueError:
            return (credential,)
        other = previous.credential
        is_valid = self._clock() * 1000 < previous.until_ms
        if is_valid and (other.salt, other.iterations) == (credential.salt, credential.iterations):
            return (credential, other)
        return (credential,)

    async def alter(
        self,
        user: str,
        mechanism: ScramMechanism,
        credential: ScramCredential | None,
        previous: ScramCredential | None = None,
        previous_valid_ms: int = 0,
    ) -> None:
        """Set a user's credential, or delete it (None). Raises ApiError.

        Nothing of a former password stays but `previous`, for `previous_valid_ms` from now on.
        """

        def changed(config: Mapping[str, str]) -> Mapping[str, str]:
            gone = mechanism.label, _previous(mechanism)
            found = {name: value for name, value in config.items() if name not in gone}
            if credential is not None:
                found[mechanism.label] = credential.as_text()
                if previous is not None:
                    until = int(self._clock() * 1000) + previous_valid_ms
                    found[_previous(mechanism)] = PreviousCredential(previous, until).as_text()
            return found

        await self._coordination.change_entity(Entity(user=user), changed)


def _previous(mechanism: ScramMechanism) -> str:
    return f"{mechanism.label}.previous"


def _is_any_in(config: Mapping[str, str]) -> bool:
    return any(mechanism.label in config for mechanism in ScramMechanism)
