"""Credentials in Secrets, read from Kubernetes for each new connection, so that a changed one applies by itself."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from millstream_kafka.client.security import Credential

from .client import Kube, KubeError


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretCredential(Credential):
    """The value of a key of a Secret."""

    kube: Kube = field(repr=False)
    namespace: str
    name: str
    key: str

    @classmethod
    def of(cls, kube: Kube, namespace: str, name: str, key: str, where: str) -> SecretCredential:
        """``where`` names its use in messages, such as a field."""
        origin = f"key {key} of Secret {namespace}/{name}"
        return cls(where, origin, kube=kube, namespace=namespace, name=name, key=key)

    def read(self) -> bytes:
        """Blocking. Raises CredentialsError."""
        try:
            live = self.kube.get("v1", "Secret", self.namespace, self.name)
        except KubeError as error:
            raise self.wrong(f"cannot be read: {error}") from None
        encoded = (live.get("data") or {}).get(self.key) if live is not None else None
        if encoded is None:
            raise self.wrong("does not exist: create it")
        try:
            found = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise self.wrong("is not Base64") from None
        if not found:
            raise self.wrong("is empty")
        return found
