"""`tls` and `sasl` of a source or the target in mirror.json. Values of Secrets are in files, never in mirror.json:

    "tls": {"caCertificates": [VALUE], "certificate": VALUE, "key": VALUE, "verifyHostname": true}
    "sasl": {"mechanism": "SCRAM-SHA-512", "username": VALUE, "password": VALUE}

VALUE is {"file": "/run/…/password", "from": "key password of Secret login"}; a user name may be {"value": "mirror"}.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET, UnsetType

from millstream_kafka.client import MECHANISMS, Credential, Sasl, Security, Tls

from .document import FileField, NameField, SaslField, TlsField
from .fields import MirrorConfigError, wrong


def security_of(field: str, tls: TlsField | UnsetType, sasl: SaslField | UnsetType) -> Security | None:
    """Raises MirrorConfigError."""
    if tls is UNSET and sasl is UNSET:
        return None
    return Security(
        _tls(f"{field}.tls", tls) if tls is not UNSET else None,
        _sasl(f"{field}.sasl", sasl) if sasl is not UNSET else None,
    )


def _tls(field: str, tls: TlsField) -> Tls:
    if (tls.certificate is UNSET) != (tls.key is UNSET):
        raise MirrorConfigError(f"{field}: set both certificate and key, or neither")
    authorities = enumerate(tls.ca_certificates)
    return Tls(
        tuple(_file(f"{field}.caCertificates[{number}]", authority) for number, authority in authorities),
        _file(f"{field}.certificate", tls.certificate) if tls.certificate is not UNSET else None,
        _file(f"{field}.key", tls.key) if tls.key is not UNSET else None,
        tls.verify_hostname,
    )


def _sasl(field: str, sasl: SaslField) -> Sasl:
    if sasl.mechanism not in MECHANISMS:
        raise wrong(f"{field}.mechanism", sasl.mechanism, ", ".join(MECHANISMS))
    username = _username(f"{field}.username", sasl.username)
    return Sasl(sasl.mechanism, username, _file(f"{field}.password", sasl.password))


def _username(field: str, name: NameField) -> Credential:
    if name.file is not None and name.value is None:
        return _file(field, FileField(name.file, name.source))
    if name.value is None or name.file is not None or name.source is not None:
        raise MirrorConfigError(f"{field}: set either value or file")
    return Credential(field, "its value", value=name.value)


def _file(field: str, file: FileField) -> Credential:
    return Credential(field, file.source if file.source is not None else file.file, Path(file.file))
