"""Settings for connecting to a secured listener, read from files again for each new connection.

So a renewed certificate or a changed password applies from the next connection on, and a missing one once it exists.
Open connections stay open, as with Kafka's own clients.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .sasl import OAUTHBEARER, Login

MAX_FILE_BYTES = 1 << 20
"""Limit of a Secret in Kubernetes, for all its values together."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750."""


class CredentialsError(ValueError):
    """A credential is missing or unusable; the message names it, and contains nothing of it."""


@dataclass(frozen=True, slots=True)
class Credential:
    """One value: a file, or the value itself. ``where`` (a field) and ``origin`` name it in messages."""

    where: str
    origin: str
    path: Path | None = None
    value: str = field(default="", repr=False)

    def read(self) -> bytes:
        """Blocking. Raises CredentialsError."""
        if self.path is None:
            return self.value.encode()
        try:
            with self.path.open("rb") as file:
                found = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            raise self.wrong("does not exist: create it, or name another one") from None
        except OSError as error:
            raise self.wrong(f"cannot be read: {error.strerror}") from None
        if not found:
            raise self.wrong("is empty")
        if len(found) > MAX_FILE_BYTES:
            raise self.wrong(f"is larger than {MAX_FILE_BYTES} bytes")
        return found

    def text(self) -> str:
        """The value without newlines at its end. Raises CredentialsError."""
        try:
            found = self.read().decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise self.wrong("is not UTF-8 text") from None
        if not found or "\0" in found:
            raise self.wrong("is empty" if not found else "contains a NUL character")
        return found

    def wrong(self, what: str) -> CredentialsError:
        return CredentialsError(f"{self.where}: {self.origin} {what}")


@dataclass(frozen=True, slots=True)
class Tls:
    ca_certificates: Sequence[Credential] = ()
    """In PEM; without any, the system's certificate authorities."""
    certificate: Credential | None = None
    key: Credential | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Blocking. Raises CredentialsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify_hostname
        # A certificate in the list is trusted even if another one has issued it, as in Java's trust stores.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for credential in self.ca_certificates:
            try:
                context.load_verify_locations(cadata=credential.text())
            except (ssl.SSLError, ValueError) as error:
                if isinstance(error, CredentialsError):
                    raise
                raise credential.wrong("is not a certificate in PEM format") from None
        if not self.ca_certificates:
            context.load_default_certs()
        if self.certificate is not None and self.key is not None:
            self._load_chain(context, self.certificate, self.key)
        return context

    def _load_chain(self, context: ssl.SSLContext, certificate: Credential, key: Credential) -> None:
        for credential in (certificate, key):
            if b"-----BEGIN " not in credential.read():
                raise credential.wrong("is not in PEM format")
        assert certificate.path is not None
        assert key.path is not None

        def no_password() -> str:
            raise key.wrong("is encrypted: store the private key without a password")

        try:
            context.load_cert_chain(certificate.path, key.path, no_password)
        except ssl.SSLError as error:
            reason = (error.reason or "not readable").replace("_", " ").lower()
            raise certificate.wrong(f"and the private key cannot be used together: {reason}") from None
        except OSError as error:
            raise certificate.wrong(f"cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class Sasl:
    """``password`` is the token of OAUTHBEARER, which has no ``username``: whoever renews it writes its file anew."""

    mechanism: str
    username: Credential | None
    password: Credential

    def login(self) -> Login:
        """Blocking. Raises CredentialsError."""
        if self.mechanism == OAUTHBEARER:
            token = self.password.text()
            if not _TOKEN.fullmatch(token):
                raise self.password.wrong("is not a token: write it in one line, such as eyJhbGciOi...")
            return Login(self.mechanism, "", token)
        assert self.username is not None
        return Login(self.mechanism, self.username.text(), self.password.text())


class CredentialSource(Protocol):
    """Reads the credentials of each new connection."""

    def load(self) -> tuple[ssl.SSLContext | None, Login | None]:
        """Blocking. Raises CredentialsError."""


@dataclass(frozen=True, slots=True)
class Security:
    """TLS, SASL, or both; without either, connections are in plain text."""

    tls: Tls | None = None
    sasl: Sasl | None = None

    def load(self) -> tuple[ssl.SSLContext | None, Login | None]:
        """Blocking. Raises CredentialsError."""
        context = None if self.tls is None else self.tls.context()
        return context, None if self.sasl is None else self.sasl.login()
