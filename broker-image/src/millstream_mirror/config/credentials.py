"""`tls` and `sasl` of a source or the target in mirror.json. Values of Secrets are in files, never in mirror.json:

    "tls": {"caCertificates": [VALUE], "certificate": VALUE, "key": VALUE, "verifyHostname": true}
    "sasl": {"mechanism": "SCRAM-SHA-512", "username": VALUE, "password": VALUE}

VALUE is {"file": "/run/…/password", "from": "key password of Secret login"}; a user name may be {"value": "mirror"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream_kafka.client import MECHANISMS, Credential, Sasl, Security, Tls

from .fields import MirrorConfigError, a_text, an_object, wrong


def security_of(field: str, fields: Mapping[str, Any]) -> Security | None:
    """Raises MirrorConfigError."""
    tls = _tls(f"{field}.tls", fields["tls"]) if "tls" in fields else None
    sasl = _sasl(f"{field}.sasl", fields["sasl"]) if "sasl" in fields else None
    return Security(tls, sasl) if tls or sasl else None


def _tls(field: str, value: Any) -> Tls:
    names = {"caCertificates", "certificate", "key", "verifyHostname"}
    fields = an_object(field, value, set(), names)
    authorities = fields.get("caCertificates", [])
    if not isinstance(authorities, list):
        raise wrong(f"{field}.caCertificates", authorities, "a list")
    if ("certificate" in fields) != ("key" in fields):
        raise MirrorConfigError(f"{field}: set both certificate and key, or neither")
    verify = fields.get("verifyHostname", True)
    if not isinstance(verify, bool):
        raise wrong(f"{field}.verifyHostname", verify, "true or false")
    return Tls(
        tuple(
            _file(f"{field}.caCertificates[{number}]", authority)
            for number, authority in enumerate(authorities)
        ),
        _file(f"{field}.certificate", fields["certificate"]) if "certificate" in fields else None,
        _file(f"{field}.key", fields["key"]) if "key" in fields else None,
        verify,
    )


def _sasl(field: str, value: Any) -> Sasl:
    fields = an_object(field, value, {"mechanism", "username", "password"}, set())
    mechanism = fields["mechanism"]
    if mechanism not in MECHANISMS:
        raise wrong(f"{field}.mechanism", mechanism, ", ".join(MECHANISMS))
    name = fields["username"]
    if isinstance(name, dict) and set(name) == {"value"}:
        username = Credential(
            f"{field}.username", "its value", value=a_text(f"{field}.username.value", name["value"])
        )
    else:
        username = _file(f"{field}.username", name)
    return Sasl(mechanism, username, _file(f"{field}.password", fields["password"]))


def _file(field: str, value: Any) -> Credential:
    if not isinstance(value, dict):  # the value may be the secret itself
        raise MirrorConfigError(f"{field}: expected an object with file: a secret is never in this document")
    fields = an_object(field, value, {"file"}, {"from"})
    path = a_text(f"{field}.file", fields["file"])
    return Credential(field, a_text(f"{field}.from", fields.get("from", path)), Path(path))
