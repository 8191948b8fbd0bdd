"""Keystores and truststores: PEM files, PEM in the configuration, and PKCS12 files, by Kafka's keys.

Everything is read at once and checked: the key belongs to the first certificate, and each further certificate has
issued the one before. Keys stay in memory: a context takes them from there (`contexts`).

A problem is a ConfigError that names the key, the file and what to do, and contains no secret. An expired certificate
is none: `KeyStore.problem` says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

from ...config.config_types import ConfigError, Value
from .distinguished_name import subject

MAX_BYTES = 4 * 1024 * 1024
"""Largest file."""
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_SEQUENCE = b"\x30"
_PEM = re.compile(r"-{2,}\s*BEGIN ([A-Z0-9 ]+?)\s*-{2,}(.*?)-{2,}\s*END \1\s*-{2,}", re.DOTALL)
_HEADER = re.compile(r"^[\w-]+:[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key and its certificates."""

    key: bytes = field(repr=False)
    """In PEM format, not encrypted."""
    chain: tuple[x509.Certificate, ...]
    """The certificate, and those of its issuers."""

    @property
    def certificate(self) -> x509.Certificate:
        return self.chain[0]

    @property
    def expires_at(self) -> datetime:
        return min(each.not_valid_after_utc for each in self.chain)

    def pem(self) -> bytes:
        return b"".join([self.key, *(each.public_bytes(Encoding.PEM) for each in self.chain)])

    def problem(self, now: datetime) -> str | None:
        """Why the certificate is not valid at that time."""
        for each in self.chain:
            if now > each.not_valid_after_utc:
                return f"the certificate {subject(each)} expired at {_shown(each.not_valid_after_utc)}"
            if now < each.not_valid_before_utc:
                return (
                    f"the certificate {subject(each)} is not valid before {_shown(each.not_valid_before_utc)}"
                )
        return None

    def names(self) -> frozenset[str]:
        """The alternative names of the certificate."""
        try:
            found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return frozenset()
        return frozenset(str(name.value) for name in found.value)


TrustStore = tuple[x509.Certificate, ...]


class TlsValues(Protocol):
    """The values of the keys `ssl.…`, for a listener or for a client."""

    @property
    def owner(self) -> str:
        """What the values are for, for errors."""

    def __getitem__(self, name: str) -> Value: ...

    def text(self, name: str) -> str: ...

    def strings(self, name: str) -> list[str]: ...

    def name_of(self, name: str) -> str:
        """The name of the key that has the value, for errors."""


class _Store:
    """The keys of a keystore or a truststore, and their values."""

    def __init__(self, values: TlsValues, kind: str) -> None:
        self.values = values
        self.type_key = f"ssl.{kind}.type"
        self.type = values.text(self.type_key)
        self.location_key = f"ssl.{kind}.location"
        self.password_key = f"ssl.{kind}.password"
        self.location = values[self.location_key]
        password = values[self.password_key]
        self.password = password.encode() if isinstance(password, str) else None

    def error(self, key: str, what: str) -> ConfigError:
        """`what` says nothing of a secret."""
        name = self.values.name_of(key)
        value = "" if key != self.location_key else f"={self.location}"
        return ConfigError(f"{name}{value}: {what}", name)

    def _named(self, key: str) -> str:
        return self.values.name_of(key)

    def read(self) -> bytes:
        path = Path(str(self.location))
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise self.error(self.location_key, f"cannot be read: {error.strerror}") from None
        if not data or len(data) > MAX_BYTES:
            raise self.error(self.location_key, f"has {len(data)} bytes: expected 1 to {MAX_BYTES}")
        return data

    def pem_text(self) -> str:
        """A PEM file. Kafka allows no password for the whole of it."""
        if self.password is not None:
            raise self.error(
                self.password_key,
                "a PEM file has no password: encrypt the private key, and set ssl.key.password",
            )
        data = self.read()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = ""
        if "-BEGIN " not in text:
            raise self.error(
                self.location_key,
                f"is not in PEM format: correct {self._named(self.type_key)}, or convert the file",
            )
        return text

    def pkcs12(self) -> pkcs12.PKCS12KeyAndCertificates:
        """A PKCS12 file. Java reads those by the type JKS, too."""
        data = self.read()
        if data.startswith(_JKS):
            raise self.error(
                self.location_key,
                "is a JKS file, which brokers do not read. Convert it: keytool -importkeystore -srckeystore"
                f" {self.location} -destkeystore {Path(str(self.location)).with_suffix('.p12')} -deststoretype PKCS12;"
                f" then set {self._named(self.location_key)} to the new file and {self._named(self.type_key)}=PKCS12",
            )
        if b"-BEGIN " in data:
            raise self.error(self.location_key, f"is a PEM file: set {self._named(self.type_key)}=PEM")
        if not data.startswith(_SEQUENCE):
            raise self.error(self.location_key, "is not a PKCS12 file")
        try:
            return pkcs12.load_pkcs12(data, self.password)
        except (ValueError, UnsupportedAlgorithm):
            why = "is not set" if self.password is None else "is wrong"
            what = f"cannot be decrypted: {self._named(self.password_key)} {why}, or the file is damaged"
            raise self.error(self.location_key, what) from None


def read_keystore(values: TlsValues) -> KeyStore | None:
    """The keystore of a listener, None without any. Blocking. Raises ConfigError."""
    store = _Store(values, "keystore")
    key_key, chain_key = "ssl.keystore.key", "ssl.keystore.certificate.chain"
    key_text, chain_text = values[key_key], values[chain_key]
    if key_text is not None or chain_text is not None:
        if store.location is not None:
            raise store.error(
                store.location_key, f"is set, and so is {key_key} or {chain_key}: set only one of them"
            )
        if store.type != "PEM":
            raise store.error(store.type_key, f"{store.type} with {key_key}: expected PEM")
        for name, value in ((key_key, key_text), (chain_key, chain_text)):
            if value is None:
                raise store.error(name, f"is not set: {key_key} and {chain_key} belong together")
        return _checked(
            store,
            chain_key,
            _key(store, key_key, str(key_text)),
            _certificates(store, chain_key, str(chain_text)),
        )
    if store.location is None:
        return None
    if store.type == "PEM":
        text = store.pem_text()
        key = _key(store, store.location_key, text)
        return _checked(store, store.location_key, key, _certificates(store, store.location_key, text))
    found = store.pkcs12()
    if found.key is None or found.cert is None:
        raise store.error(
            store.location_key,
            "has no private key with its certificate: create it by openssl pkcs12 -export -inkey KEY -in CERTIFICATE",
        )
    chain = _ordered(found.cert.certificate, [each.certificate for each in found.additional_certs])
    return _checked(store, store.location_key, found.key, chain)


def read_truststore(values: TlsValues) -> TrustStore:
    """The certificates that a listener trusts; empty without a truststore. Blocking. Raises ConfigError."""
    store = _Store(values, "truststore")
    inline_key = "ssl.truststore.certificates"
    inline = values[inline_key]
    if inline is not None:
        if store.location is not None:
            raise store.error(store.location_key, f"is set, and so is {inline_key}: set only one of them")
        if store.type != "PEM":
            raise store.error(store.type_key, f"{store.type} with {inline_key}: expected PEM")
        return tuple(_certificates(store, inline_key, str(inline)))
    if store.location is None:
        return ()
    if store.type == "PEM":
        return tuple(_certificates(store, store.location_key, store.pem_text()))
    found = store.pkcs12()
    trusted = [
        each.certificate for each in ([found.cert] if found.cert else []) + list(found.additional_certs)
    ]
    if not trusted:
        raise store.error(store.location_key, "has no certificate")
    return tuple(trusted)


def locations(values: TlsValues) -> tuple[Path, ...]:
    """The files that a listener's certificates are in."""
    found = (values[key] for key in ("ssl.keystore.location", "ssl.truststore.location"))
    return tuple(Path(each) for each in found if isinstance(each, str))


def _blocks(text: str) -> list[tuple[str, bytes]]:
    """The blocks of a text in PEM format, whose line ends may be blanks, as in Kafka."""
    found = []
    for label, content in _PEM.findall(text):
        headers = _HEADER.findall(content)
        body = "".join(_HEADER.sub("", content).split())
        lines = [body[start : start + 64] for start in range(0, len(body), 64)]
        head = [*headers, ""] if headers else []
        found.append(
            (
                label,
                "\n".join([f"-----BEGIN {label}-----", *head, *lines, f"-----END {label}-----", ""]).encode(),
            )
        )
    return found


def _key(store: _Store, key: str, text: str) -> PrivateKeyTypes:
    blocks = [block for label, block in _blocks(text) if label.endswith("PRIVATE KEY")]
    if len(blocks) != 1:
        raise store.error(
            key,
            f"has {len(blocks)} private keys in PEM format: expected 1, which begins with -----BEGIN PRIVATE KEY-----",
        )
    password = store.values["ssl.key.password"]
    try:
        return load_pem_private_key(blocks[0], password.encode() if isinstance(password, str) else None)
    except TypeError:
        name = store.values.name_of("ssl.key.password")
        what = "is encrypted: set" if password is None else "is not encrypted: remove"
        raise store.error(key, f"the private key {what} {name}") from None
    except (ValueError, UnsupportedAlgorithm):
        why = (
            "is damaged"
            if password is None
            else f"cannot be decrypted: {store.values.name_of('ssl.key.password')} is wrong, or the key is damaged"
        )
        raise store.error(key, f"the private key {why}") from None


def _certificates(store: _Store, key: str, text: str) -> list[x509.Certificate]:
    blocks = [block for label, block in _blocks(text) if label.endswith("CERTIFICATE")]
    if not blocks:
        raise store.error(key, "has no certificate in PEM format")
    try:
        return [x509.load_pem_x509_certificate(block) for block in blocks]
    except ValueError:
        raise store.error(key, "has a certificate that is damaged") from None


def _ordered(leaf: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """A chain, from what a PKCS12 file has in any order."""
    chain = [leaf]
    while (
        issuer := next((each for each in others if _issued(each, chain[-1])), None)
    ) and issuer not in chain:
        chain.append(issuer)
    return chain


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _checked(store: _Store, key: str, private: PrivateKeyTypes, chain: list[x509.Certificate]) -> KeyStore:
    leaf = chain[0]
    if _public(private.public_key()) != _public(leaf.public_key()):
        raise store.error(key, f"the private key does not belong to the first certificate, {subject(leaf)}")
    for certificate, issuer in pairwise(chain):
        if not _issued(issuer, certificate):
            raise store.error(
                key,
                f"the certificate {subject(issuer)} did not issue the one before it, {subject(certificate)}:"
                " expected the certificate, then its issuer, and so on",
            )
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyStore(pem, tuple(chain))


def _shown(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
