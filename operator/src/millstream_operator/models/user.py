"""User: credential, access rules and quotas of one user of a Cluster."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from .base import ClusterRef, DeletionPolicy, OverlappingRotate, Resource, Spec, Status
from .conditions import Condition
from .mirror import SecretKey, SecretValue

Part = Literal["Credential", "AccessRules", "Quotas"]
AclResource = Literal["topic", "group", "cluster", "transactionalId"]


class OwnPassword(Spec, frozen=True):
    value_from: SecretValue


class Authentication(Spec, frozen=True):
    type: Literal["ScramSha512", "Tls"]
    password: OwnPassword | None = None


class AclTarget(Spec, frozen=True):
    type: AclResource
    name: str | None = None
    pattern_type: Literal["literal", "prefix"] = "literal"


class AclRule(Spec, frozen=True):
    resource: AclTarget
    operations: tuple[str, ...]
    host: str = "*"
    type: Literal["allow", "deny"] = "allow"


class Authorization(Spec, frozen=True):
    type: Literal["Simple"]
    acls: tuple[AclRule, ...] = ()


class UserQuotas(Spec, frozen=True):
    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None
    request_percentage: int | None = None
    controller_mutation_rate: float | None = None


class UserSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    user_name: str | None = None
    authentication: Authentication | None = None
    authorization: Authorization | None = None
    quotas: UserQuotas | None = None
    rotate: OverlappingRotate | None = None
    drift: Literal["Mend", "Report"] = "Mend"
    deletion_policy: DeletionPolicy = "Delete"


class UserStatus(Status, frozen=True):
    observed_generation: int | None = None
    username: str | None = None
    secret: str | None = None
    access_rules: int | None = None
    applied_generation: int | None = None
    managed: tuple[Part, ...] | None = None
    credential: str | None = None
    rotated_for: str | None = None
    conditions: tuple[Condition, ...] | None = None


class User(Resource, frozen=True):
    KIND, PLURAL = "User", "users"
    CLAIMS, HELD = "userName", True
    spec: UserSpec
    status: UserStatus = field(default_factory=UserStatus)

    @property
    def user_name(self) -> str:
        return self.spec.user_name or self.name

    @property
    def has_certificate(self) -> bool:
        """Whether the user authenticates by a certificate."""
        return self.spec.authentication is not None and self.spec.authentication.type == "Tls"

    @property
    def kafka_name(self) -> str:
        """The user's name in Kafka, for access rules and quotas: that of a certificate is its subject."""
        return f"CN={self.user_name}" if self.has_certificate else self.user_name

    @property
    def password_key(self) -> SecretKey | None:
        """The key of the Secret that has the password; None without a password."""
        authentication = self.spec.authentication
        if authentication is None or self.has_certificate:
            return None
        if authentication.password is None:
            return SecretKey(name=self.name, key="password")
        return authentication.password.value_from.secret_key_ref

    @property
    def generates_password(self) -> bool:
        return (
            not self.has_certificate
            and self.spec.authentication is not None
            and self.spec.authentication.password is None
        )
