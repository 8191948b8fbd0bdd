"""How a job connects to the brokers of its cluster: librdkafka in Python, and Spark's Kafka source.

`login` of a file names a folder with the files of a user's Secret:

    username, password     of SCRAM-SHA-512
    sasl.jaas.config       the same for Kafka's Java client

Spark gets a reference to the last file, which each of its processes resolves: no plan, event log or configuration of
Spark has the password. Executors need the folder at the same path. Files are read for each new client, so a changed
password applies to a run that has begun.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from millstream_jobs.failures import JobError

Bootstrap = Annotated[str, Meta(pattern=r"^[^\s:]+:[0-9]+(,[^\s:]+:[0-9]+)*$")]
JAAS = "sasl.jaas.config"
MECHANISM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
PROVIDER = {
    "config.providers": "directory",
    "config.providers.directory.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}
MOST_BYTES = 4096


class LoginMissing(JobError):
    """A file of the login cannot be read; a retry may find it."""

    reason = "CredentialsMissing"


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    folder: Annotated[str, Meta(pattern=r"^/[^\s$:{}]*$")]

    def read(self, name: str) -> str:
        file = Path(self.folder) / name
        try:
            with file.open(encoding="utf-8") as opened:
                found = opened.read(MOST_BYTES).removesuffix("\n")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise LoginMissing(
                f"login.folder: {file} cannot be read: {why}: mount the user's Secret there"
            ) from None
        if not found:
            raise LoginMissing(f"login.folder: {file} is empty: mount the user's Secret there")
        return found


class Brokers(Struct, frozen=True):
    """``login``: None for connections without one."""

    bootstrap: str
    login: Login | None = None

    def client(self) -> dict[str, str]:
        """librdkafka's configuration. Raises LoginMissing."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.login is not None:
            user, password = self.login.read("username"), self.login.read("password")
            found |= {**MECHANISM, "sasl.username": user, "sasl.password": password}
        return found

    def source(self) -> dict[str, str]:
        """Options of Spark's Kafka source. Raises LoginMissing."""
        found = {"bootstrap.servers": self.bootstrap}
        if self.login is not None:
            self.login.read(JAAS)  # otherwise Spark's error would name no file
            found |= {**MECHANISM, **PROVIDER, JAAS: f"${{directory:{self.login.folder}:{JAAS}}}"}
        return {f"kafka.{key}": value for key, value in found.items()}
