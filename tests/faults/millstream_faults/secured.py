"""Certificates, users and passwords of a cluster whose clients authenticate, and what brokers and clients need of them.

Files are replaced as a whole, so a broker that reads one meanwhile finds the old or the new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from millstream_harness.certificates import Authority, tls_keys
from millstream_kafka.acl import AclOperation, PatternType, PermissionType, ResourceType
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.security import Credential, Sasl, Security, Tls
from millstream_kafka.protocol import alter_user_scram_credentials as scram
from millstream_kafka.protocol import create_acls
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.scram_mechanism import ScramMechanism

ANONYMOUS = "User:ANONYMOUS"
ADMIN, ADMIN_PASSWORD = "admin", "the-password-of-admin"
MECHANISM = ScramMechanism.SCRAM_SHA_512
ITERATIONS = 4096
NAMES = ("localhost", "127.0.0.1")
BEGAN = timedelta(hours=3)
"""How long certificates have been valid: a broker's clock may be an hour behind."""


def replace(path: Path, text: str) -> None:
    """Write a file as a whole."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


class Secured:
    """The certificates of brokers, one for each, and the authorities that clients and brokers trust."""

    def __init__(self, folder: Path, brokers: Iterable[int], names: Sequence[str] = NAMES) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.names = names
        self.authorities = [Authority(), Authority("Another CA")]
        """They take turns."""
        self.authority = self.authorities[0]
        replace(folder / "authorities.pem", "".join(each.pem for each in self.authorities))
        self.trusted = folder / "trusted.pem"
        """The authorities: a truststore of brokers, and of clients."""
        self.trust(self.authority)
        self.brokers = list(brokers)
        for number in self.brokers:
            self.issue(number)

    def trust(self, *authorities: Authority) -> None:
        replace(self.trusted, "".join(each.pem for each in authorities))

    def keystore(self, number: int) -> Path:
        return self.folder / f"broker-{number}.pem"

    def issue(self, number: int) -> None:
        """A new certificate of a broker, by the present authority."""
        issued = self.authority.issue(names=self.names, begin=-BEGAN)
        replace(self.keystore(number), issued.pem())

    def config(self, number: int, *listeners: str) -> Mapping[str, str]:
        """Configuration of a broker with these SASL listeners, whose administrator is ADMIN."""
        jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{ADMIN}="{ADMIN_PASSWORD}";'
        return {
            **tls_keys(self.keystore(number), self.trusted),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas for name in listeners},
        }

    @property
    def tls(self) -> Tls:
        return Tls([Credential("trusted", "the run", path=self.trusted)])

    def admin(self, *, is_encrypted: bool = True) -> Security:
        return self._security(ADMIN, ADMIN_PASSWORD, "PLAIN", is_encrypted=is_encrypted)

    def user(self, name: str, password: str, *, is_encrypted: bool = True) -> Security:
        return self._security(name, password, MECHANISM.label, is_encrypted=is_encrypted)

    def _security(self, name: str, password: str, mechanism: str, *, is_encrypted: bool) -> Security:
        user, secret = (
            Credential(what, "the run", value=value) for what, value in (("user", name), ("p", password))
        )
        return Security(self.tls if is_encrypted else None, Sasl(mechanism, user, secret))


def upsertion(
    user: str, password: str, mechanism: ScramMechanism = MECHANISM
) -> scram.ScramCredentialUpsertion:
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, ITERATIONS)
    return scram.ScramCredentialUpsertion(user, mechanism, ITERATIONS, salt, salted)


async def set_passwords(client: ClusterClient, passwords: Mapping[str, str]) -> None:
    """Raises ApiError, BrokerError."""
    upsertions = [upsertion(user, password) for user, password in passwords.items()]
    request = scram.AlterUserScramCredentialsRequest(upsertions=upsertions)
    answer = await client.call_any(scram.API, request)
    for result in answer.results:
        _check(result.error_code, result.error_message)


async def allow(
    client: ClusterClient, user: str, resource_type: ResourceType, name: str, *operations: AclOperation
) -> None:
    """Raises ApiError, BrokerError."""
    creations = [rule(user, resource_type, name, operation) for operation in operations]
    answer = await client.call_any(create_acls.API, create_acls.CreateAclsRequest(creations))
    for result in answer.results:
        _check(result.error_code, result.error_message)


def rule(
    user: str,
    resource_type: ResourceType,
    name: str,
    operation: AclOperation,
    permission_type: PermissionType = PermissionType.ALLOW,
) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        resource_type, name, PatternType.LITERAL, f"User:{user}", "*", operation, permission_type
    )


def _check(code: int, message: str | None) -> None:
    if code:
        raise ApiError(ErrorCode.of(code), message or "")
