"""A certificate authority in memory, and the keystores of brokers and clients that it issues, without any process."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

HOUR = timedelta(hours=1)
NAMES = ("localhost", "127.0.0.1")

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class Issued:
    """A private key and its certificate, with those of its issuers up to the authority, without it."""

    def __init__(self, key: Key, chain: Sequence[x509.Certificate]) -> None:
        self.key = key
        self.chain = chain

    def key_pem(self, password: str | None = None) -> str:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def chain_pem(self) -> str:
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in self.chain)

    def pem(self, password: str | None = None) -> str:
        return self.key_pem(password) + self.chain_pem()

    def pkcs12(self, password: str) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(
            b"broker", self.key, self.chain[0], self.chain[1:], encryption
        )

    def write(self, path: Path) -> Path:
        """A PEM file with the key and the certificates."""
        path.write_text(self.pem())
        return path


class Authority:
    """Issues certificates."""

    def __init__(self, name: str = "Test CA", parent: Authority | None = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.parent = parent
        now = datetime.now(UTC)
        issuer = self if parent is None else parent
        self.certificate: x509.Certificate = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named(name) if parent is None else parent.certificate.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR)
            .not_valid_after(now + timedelta(days=10))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(issuer.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(
        self,
        subject: x509.Name | str = "broker",
        names: Sequence[str] = NAMES,
        *,
        begin: timedelta = -HOUR,
        end: timedelta = timedelta(days=1),
        key: Key | None = None,
        usages: Sequence[x509.ObjectIdentifier] = (),
    ) -> Issued:
        """`begin` and `end` are relative to now; `usages` are those of the key, any if there are none."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(subject) if isinstance(subject, str) else subject)
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin)
            .not_valid_after(now + end)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
            )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        chain = [builder.sign(self.key, hashes.SHA256())]
        return Issued(key, chain if self.parent is None else [*chain, self.certificate])

    def client_context(self, client: Issued | None = None, folder: Path | None = None) -> ssl.SSLContext:
        """A context that trusts this authority; with a client's certificate, which is written to the folder."""
        context = ssl.create_default_context(cadata=self.pem)
        if client is not None:
            assert folder is not None
            context.load_cert_chain(client.write(folder / f"client-{id(client)}.pem"))
        return context


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def tls_keys(keystore: Path, truststore: Path | None = None, **more: str) -> Mapping[str, str]:
    """Kafka's keys for PEM files; further keys have `_` for `.`."""
    given = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    if truststore is not None:
        given |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(truststore)}
    return given | {key.replace("_", "."): value for key, value in more.items()}
