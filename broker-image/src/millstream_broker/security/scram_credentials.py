"""SCRAM credentials as Kafka stores them, in the configuration of their users (KIP-84):

    SCRAM-SHA-256: salt=…,stored_key=…,server_key=…,iterations=4096        (Base64)

They let a server verify a proof of the password, but not compute it. Reading raises ValueError, without the value.
"""

from __future__ import annotations

import base64
import binascii
import logging
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


class ScramCredentials:
    """The credentials in coordination, as this broker knows them."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
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

    async def alter(self, user: str, mechanism: ScramMechanism, credential: ScramCredential | None) -> None:
        """Set a user's credential, or delete it (None). Raises ApiError."""

        def changed(config: Mapping[str, str]) -> Mapping[str, str]:
            rest = {name: value for name, value in config.items() if name != mechanism.label}
            return rest if credential is None else {**rest, mechanism.label: credential.as_text()}

        await self._coordination.change_entity(Entity(user=user), changed)


def _is_any_in(config: Mapping[str, str]) -> bool:
    return any(mechanism.label in config for mechanism in ScramMechanism)
