"""A User's client configuration as text: for Kafka's Java clients, librdkafka and Python; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .user import MECHANISM, jaas_config


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """``authority``: the file with the authorities to trust, in PEM format; "" for connections without TLS."""

    bootstrap: str
    username: str
    password: str = field(repr=False)
    authority: str = ""

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.authority else "SASL_PLAINTEXT"


def java(login: ClientLogin) -> str:
    """A file of properties, as Java reads it: UTF-16 and backslashes are escaped."""
    found = {"bootstrap.servers": login.bootstrap, "security.protocol": login.protocol}
    if login.authority:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.authority}
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
    if login.authority:
        found["ssl.ca.location"] = login.authority
    return found | {
        "sasl.mechanism": MECHANISM,
        "sasl.username": login.username,
        "sasl.password": login.password,
    }


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").encode("utf-16-be")
    units = (int.from_bytes(text[at : at + 2]) for at in range(0, len(text), 2))
    return "".join(chr(unit) if 32 <= unit < 127 else f"\\u{unit:04x}" for unit in units)


def _literal(value: str) -> str:
    """JSON's texts are Python's, too, but for characters beyond 16 bits, which stay as they are."""
    return json.dumps(value, ensure_ascii=False)
