"""How a job connects to the brokers of its cluster: librdkafka in Python, and Spark's Kafka source.

`tls` of a file names a file with the certificates of the authorities that brokers' certificates are of, in PEM format.
Without it, connections have no TLS. `login` names a folder with the files of a user's Secret:

    username, password     of SCRAM-SHA-512
    sasl.jaas.config       the same for Kafka's Java client

Spark gets a reference to the last file, which each of its processes resolves: no plan, event log or configuration of
Spark has the password. Executors need folder and file at the same paths. Files are read for each new client, so a
changed password or authority applies to a run that has begun; a task that fails is repeated with a new client.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from millstream_jobs.failures import JobError

Bootstrap = Annotated[str, Meta(pattern=r"^[^\s:]+:[0-9]+(,[^\s:]+:[0-9]+)*$")]
JAAS = "sasl.jaas.config"
MECHANISM = "SCRAM-SHA-512"
PROTOCOLS = {
    (False, False): "PLAINTEXT",
    (False, True): "SSL",
    (True, False): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}
"""By whether the job logs in, and whether it has TLS."""
PROVIDER = {
    "config.providers": "directory",
    "config.providers.directory.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}
MOST_BYTES = 4096
MOST_CERTIFICATE_BYTES = 1 << 20
CERTIFICATE = "-----BEGIN CERTIFICATE-----"


class LoginMissing(JobError):
    """A file of the login cannot be read; a retry may find it."""

    reason = "CredentialsMissing"


class AuthoritiesMissing(JobError):
    """The file of the authorities cannot be read; a retry may find it."""

    reason = "CredentialsMissing"


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    folder: Annotated[str, Meta(pattern=r"^/[^\s$:{}]*$")]

    def read(self, name: str) -> str:
        file = Path(self.folder) / name
        try:
            found = _read(file, MOST_BYTES).removesuffix("\n")
        except ValueError as error:
            raise LoginMissing(
                f"login.folder: {file} cannot be read: {error}: mount the user's Secret there"
            ) from None
        if not found:
            raise LoginMissing(f"login.folder: {file} is empty: mount the user's Secret there")
        return found


class Tls(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    ca_file: Annotated[str, Meta(pattern=r"^/[^\s$:{}]*$")]

    def check(self) -> None:
        """Raises AuthoritiesMissing: the errors of clients would name no file."""
        what = "mount ca.crt of the Secret with the Cluster's authorities there"
        try:
            found = _read(Path(self.ca_file), MOST_CERTIFICATE_BYTES)
        except ValueError as error:
            raise AuthoritiesMissing(f"tls.caFile: {self.ca_file} cannot be read: {error}: {what}") from None
        if CERTIFICATE not in found:
            raise AuthoritiesMissing(f"tls.caFile: {self.ca_file} has no certificate in PEM format: {what}")


def _read(file: Path, most: int) -> str:
    """Raises ValueError, which says why."""
    try:
        with file.open(encoding="utf-8") as opened:
            return opened.read(most)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(error.strerror) from None


class Brokers(Struct, frozen=True):
    """``login``: None for connections without one; ``tls``: None for connections in plain text."""

    bootstrap: str
    login: Login | None = None
    tls: Tls | None = None

    def client(self) -> dict[str, str]:
        """librdkafka's configuration. Raises LoginMissing and AuthoritiesMissing."""
        found = self._common()
        if self.tls is not None:
            found["ssl.ca.location"] = self.tls.ca_file
        if self.login is not None:
            user, password = self.login.read("username"), self.login.read("password")
            found |= {"sasl.username": user, "sasl.password": password}
        return found

    def source(self) -> dict[str, str]:
        """Options of Spark's Kafka source. Raises LoginMissing and AuthoritiesMissing."""
        found = self._common()
        if self.tls is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.tls.ca_file}
        if self.login is not None:
            self.login.read(JAAS)  # otherwise Spark's error would name no file
            found |= {**PROVIDER, JAAS: f"${{directory:{self.login.folder}:{JAAS}}}"}
        return {f"kafka.{key}": value for key, value in found.items()}

    def _common(self) -> dict[str, str]:
        """What both clients name alike."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.tls is not None:
            self.tls.check()
        if self.login is not None or self.tls is not None:
            found["security.protocol"] = PROTOCOLS[self.login is not None, self.tls is not None]
        if self.login is not None:
            found["sasl.mechanism"] = MECHANISM
        return found
