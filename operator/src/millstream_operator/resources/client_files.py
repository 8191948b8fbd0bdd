"""A User's client configuration as text: for Kafka's Java clients, librdkafka and Python; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .user import MECHANISM, jaas_config

PROPERTIES: Final = "client.properties"
LIBRDKAFKA: Final = "librdkafka.properties"
PYTHON: Final = "client_config.py"
"""Names of their files."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """In PEM format: the authorities to trust, and with ``certificate`` and ``key`` the client's own.

    Each is the text itself, or with ``are_files`` the name of its file.
    """

    authorities: str
    certificate: str = ""
    key: str = field(default="", repr=False)
    are_files: bool = False


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """``password``: None for a client without; ``tls``: None for connections in plain text."""

    bootstrap: str
    username: str
    password: str | None = field(repr=False)
    tls: ClientTls | None = None

    @property
    def protocol(self) -> str:
        return ("" if self.password is None else "SASL_") + ("PLAINTEXT" if self.tls is None else "SSL")


def java(login: ClientLogin) -> str:
    """A file of properties, as Java reads it: UTF-16, newlines and backslashes are escaped."""
    found = {"bootstrap.servers": login.bootstrap, "security.protocol": login.protocol}
    if (tls := login.tls) is not None:
        trusted = "location" if tls.are_files else "certificates"
        found |= {"ssl.truststore.type": "PEM", f"ssl.truststore.{trusted}": tls.authorities}
        if tls.certificate:
            found["ssl.keystore.type"] = "PEM"
            # a file has both
            found |= (
                {"ssl.keystore.location": tls.key}
                if tls.are_files
                else {"ssl.keystore.certificate.chain": tls.certificate, "ssl.keystore.key": tls.key}
            )
    if login.password is not None:
        found |= {
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": jaas_config(login.username, login.password),
        }
    return "".join(f"{key}={_escaped(value)}\n" for key, value in found.items())


def librdkafka(login: ClientLogin) -> str:
    """A file of KEY=VALUE lines, as kcat -F reads it."""
    return "".join(f"{key}={value}\n" for key, value in _settings(login).items())


def python(login: ClientLogin) -> str:
    """A dictionary for confluent-kafka, and for millstream.Cluster."""
    lines = (f"    {json.dumps(key)}: {_literal(value)},\n" for key, value in _settings(login).items())
    return f"config = {{\n{''.join(lines)}}}\n"


FORMATS: Final[Mapping[str, Callable[[ClientLogin], str]]] = {
    "java": java,
    "librdkafka": librdkafka,
    "python": python,
}


def _settings(login: ClientLogin) -> dict[str, str]:
    found = {"bootstrap.servers": login.bootstrap, "security.protocol": login.protocol}
    if (tls := login.tls) is not None:
        end = "location" if tls.are_files else "pem"
        found[f"ssl.ca.{end}"] = tls.authorities
        if tls.certificate:
            found |= {f"ssl.certificate.{end}": tls.certificate, f"ssl.key.{end}": tls.key}
    if login.password is not None:
        found |= {
            "sasl.mechanism": MECHANISM,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    return found


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").encode("utf-16-be")
    units = (int.from_bytes(text[at : at + 2]) for at in range(0, len(text), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in units)


def _literal(value: str) -> str:
    """JSON's texts are Python's, too, but for characters beyond 16 bits, which stay as they are."""
    return json.dumps(value, ensure_ascii=False)
