"""Who may do what, as plain records without I/O: SCRAM credentials, access rules (ACLs) and quotas.

Numbers and names are Kafka's. No record shows a password, not even as text of itself.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ..acl import AclOperation, PatternType, PermissionType, ResourceType
from ..scram_mechanism import MIN_ITERATIONS, ScramMechanism, stored

SALT_BYTES = 24


class ScramUser(NamedTuple):
    """A user's credential of one mechanism."""

    user: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A password as brokers store it: salted and hashed ``iterations`` times."""

    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)
    previous_salted_password: bytes = field(default=b"", repr=False)
    previous_valid_ms: int = 0

    @classmethod
    def of_password(
        cls,
        user: str,
        mechanism: ScramMechanism,
        password: str,
        *,
        iterations: int = MIN_ITERATIONS,
        salt: bytes = b"",
        previous: str = "",
        previous_valid_ms: int = 0,
    ) -> ScramCredential:
        """Takes milliseconds of CPU. Without ``salt``, a new random one.

        ``previous``: a password that stays valid for ``previous_valid_ms``, at most a day, at brokers of Millstream;
        others ignore it.
        """
        salt = salt or secrets.token_bytes(SALT_BYTES)

        def salted(text: str) -> bytes:
            return hashlib.pbkdf2_hmac(mechanism.digest, text.encode(), salt, iterations)

        if not previous or previous_valid_ms <= 0:
            return cls(user, mechanism, iterations, salt, salted(password))
        return cls(user, mechanism, iterations, salt, salted(password), salted(previous), previous_valid_ms)

    @property
    def line(self) -> str:
        """A line of a broker's `sasl.scram.credentials.location`; it contains no password."""
        keys = self.mechanism.keys(self.salted_password)
        return f"{self.user} {self.mechanism.label} {stored(self.salt, *keys, self.iterations)}"


class Acl(NamedTuple):
    """One access rule. ``principal`` is "User:name"; ``host`` an address or "*"; ``name`` may be "*" if literal."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        return " ".join(
            (
                *(
                    _name(PermissionType, self.permission),
                    self.principal,
                    _name(AclOperation, self.operation),
                ),
                *("on", _name(ResourceType, self.resource_type), self.name),
                *(f"({_name(PatternType, self.pattern)})", "from", self.host),
            )
        )


class AclFilter(NamedTuple):
    """Rules to describe or delete; None and ANY match all."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = PermissionType.ANY

    @classmethod
    def only(cls, acl: Acl) -> AclFilter:
        """The filter that matches one rule and no other."""
        return cls(*acl)


USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""Types of an entity's parts."""
QuotaOf = frozenset[tuple[str, str | None]]
"""An entity that has quotas: its parts as type and name; the name None is the default of all names."""


def quota_of(**parts: str | None) -> QuotaOf:
    """The entity of parts such as ``user="alice", client_id=None``."""
    return frozenset((kind.replace("_", "-"), name) for kind, name in parts.items())


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Quotas to set on an entity by Kafka's keys, such as producer_byte_rate, and keys to remove."""

    set: Mapping[str, float]
    remove: Iterable[str] = ()


def _name(kind: type[IntEnum], number: int) -> str:
    return next((each.name for each in kind if each == number), str(number))
