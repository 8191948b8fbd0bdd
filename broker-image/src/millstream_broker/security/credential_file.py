"""SCRAM credentials in a file of a listener (`sasl.scram.credentials.location`), a line each:

    USER SCRAM-SHA-512 salt=…,stored_key=…,server_key=…,iterations=4096        (as in coordination)

A platform that runs brokers can so log in before it has set any user, and whatever has become of coordination. Users of
the file are known by it alone. One with several credentials may use the password of any: that is how a password is
replaced without a moment in which it fails. A server names a salt before it knows the password, so they share theirs.

The file is read again when it has changed; what is refused is logged once, and the former credentials stay in use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from millstream_kafka.scram_mechanism import ScramMechanism

from ..config.config_types import ConfigError
from .file_states import file_states
from .scram_credentials import ScramCredential

KEY = "sasl.scram.credentials.location"
MAX_FILE_BYTES = 1 << 20
"""Limit of a Secret in Kubernetes."""

EXPECTED = (
    "; a line is USER SCRAM-SHA-512 salt=…,stored_key=…,server_key=…,iterations=…, with the values of"
    " /config/users/USER and no password"
)

Found = Mapping[tuple[str, ScramMechanism], tuple[ScramCredential, ...]]
log = logging.getLogger(__name__)


class CredentialFile:
    """The credentials of one file, as they are now."""

    def __init__(self, path: Path) -> None:
        """Blocking. Raises ConfigError."""
        self._path = path
        self._problem = ""
        self._seen = file_states([path])
        try:
            self._found = read(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{KEY}={path}: {_words(error)}{EXPECTED}", KEY) from None

    def of(self, user: str, mechanism: ScramMechanism) -> tuple[ScramCredential, ...]:
        self._reload()
        return self._found.get((user, mechanism), ())

    def _reload(self) -> None:
        seen = file_states([self._path])
        if seen == self._seen:
            return
        try:
            self._found = read(self._path)
            self._seen, self._problem = seen, ""
            log.info("%s: the credentials in %s are used from now on", KEY, self._path)
        except (OSError, ValueError) as error:
            if (problem := _words(error)) != self._problem:
                self._problem = problem
                log.error("%s: %s is refused, and the former credentials stay: %s", KEY, self._path, problem)


def read(path: Path) -> Found:
    """Blocking. Raises OSError, ValueError; messages contain no credential."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    found: dict[tuple[str, ScramMechanism], tuple[ScramCredential, ...]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            user, label, text = line.split(" ")
            mechanism = ScramMechanism[label.replace("-", "_")]
        except (ValueError, KeyError):
            raise ValueError(f"line {number}: expected USER SCRAM-SHA-256|SCRAM-SHA-512 CREDENTIAL") from None
        try:
            credential = ScramCredential.from_text(mechanism, text)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        others = found.get((user, mechanism), ())
        if any((each.salt, each.iterations) != (credential.salt, credential.iterations) for each in others):
            raise ValueError(f"line {number}: the credentials of a user need the same salt and iterations")
        found[user, mechanism] = (*others, credential)
    return found


def _words(error: Exception) -> str:
    return error.strerror or "it cannot be read" if isinstance(error, OSError) else str(error)
