"""The users that brokers know, for tests of what the operator gives its pods."""

from __future__ import annotations

from typing import Any

from millstream_operator.kafka.records import Acl, Refusal, ScramCredential, ScramMechanism

SHA_512 = ScramMechanism.SCRAM_SHA_512


class KnownUsers:
    """Credentials and rules as brokers keep them, behind the requests of KafkaAdmin."""

    def __init__(self) -> None:
        self.credentials: dict[str, ScramCredential] = {}
        self.rules: set[Acl] = set()

    @property
    def answers(self) -> dict[str, Any]:
        return {
            "scram_users": lambda names: {
                name: {SHA_512: one.iterations}
                for name, one in self.credentials.items()
                if names is None or name in names
            },
            "change_scram_users": self._scram,
            "rules": lambda principal: [one for one in self.rules if one.principal == principal],
            "create_rules": self._create,
            "delete_rules": self.rules.difference_update,
        }

    def _scram(self, upsertions: list[ScramCredential], deletions: list[Any]) -> dict[str, Refusal | None]:
        self.credentials |= {one.user: one for one in upsertions}
        for user, _ in deletions:
            del self.credentials[user]
        return {}

    def _create(self, rules: frozenset[Acl]) -> dict[Acl, None]:
        self.rules |= rules
        return dict.fromkeys(rules)

    def accepts(self, user: str, password: str) -> bool:
        """Whether it is the user's password, or the former one while that is valid."""
        known = self.credentials[user]
        again = ScramCredential.of_password(
            user, SHA_512, password, iterations=known.iterations, salt=known.salt
        )
        return again.salted_password in (known.salted_password, known.previous_salted_password)

    def may(self, user: str) -> set[str]:
        """The user's rules in words."""
        own = (str(one) for one in self.rules if one.principal == f"User:{user}")
        return {words.removeprefix("ALLOW ").replace(f"User:{user} ", "") for words in own}
