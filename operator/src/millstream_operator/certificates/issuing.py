"""Certificates and their private keys: made, read and described; time is an argument.

Keys are ECDSA on P-256, which every client of Kafka verifies. A certificate is valid from an hour before it is issued,
because clocks differ.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED = timedelta(hours=1)
Certificate = x509.Certificate
SigningKey = (
    ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
)


@dataclass(frozen=True, slots=True)
class Issued:
    """A private key in PEM format, its certificate, and those of its issuers that are no roots."""

    key: bytes = field(repr=False)
    chain: tuple[Certificate, ...]

    @property
    def certificate(self) -> Certificate:
        return self.chain[0]

    @property
    def starts_at(self) -> datetime:
        return max(each.not_valid_before_utc for each in self.chain)

    @property
    def ends_at(self) -> datetime:
        return min(each.not_valid_after_utc for each in self.chain)

    @property
    def issued_at(self) -> datetime:
        return self.certificate.not_valid_before_utc + BACKDATED

    @property
    def renewal_at(self) -> datetime:
        """Two thirds of its life."""
        begin = self.certificate.not_valid_before_utc
        return begin + (self.ends_at - begin) * 2 / 3

    def is_valid(self, now: datetime) -> bool:
        return self.starts_at <= now < self.ends_at

    def pem(self) -> bytes:
        """The key and the certificates, as brokers and clients read them."""
        return self.key + pem_of(self.chain)


def whole_second(moment: datetime) -> datetime:
    """The time that a certificate can carry."""
    return moment.astimezone(UTC).replace(microsecond=0)


def named(common_name: str, **others: str) -> x509.Name:
    """``others``: organization and organizational_unit."""
    oids = {
        "organization": NameOID.ORGANIZATION_NAME,
        "organizational_unit": NameOID.ORGANIZATIONAL_UNIT_NAME,
    }
    parts = [x509.NameAttribute(oids[name], value) for name, value in others.items()]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def new_authority(cluster: str, namespace: str, now: datetime, life: timedelta) -> Issued:
    """A root with a subject of its own: no two authorities of a Cluster have the same."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = named(
        f"{cluster} {identifier.digest.hex()[:8]}", organization=cluster, organizational_unit=namespace
    )
    return _issue(key, key, name, name, identifier, now, life, authority=True)


def issue(
    authority: Issued,
    subject: x509.Name,
    names: Collection[str],
    now: datetime,
    life: timedelta,
    *,
    is_server: bool,
) -> Issued:
    """A certificate that ends no later than its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if is_server else ())]
    others: list[tuple[x509.ExtensionType, bool]] = [
        (x509.ExtendedKeyUsage(purposes), False),
        (x509.AuthorityKeyIdentifier(_identifier(issuer).digest, None, None), False),
    ]
    if names:
        others.append((x509.SubjectAlternativeName(map(_general_name, sorted(names))), False))
    signer = _loaded(authority.key)
    found = _issue(
        key,
        signer,
        subject,
        issuer.subject,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        now,
        min(life, authority.ends_at - now),
        others=others,
    )
    intermediates = tuple(each for each in authority.chain if not is_root(each))
    return Issued(found.key, (*found.chain, *intermediates))


def _issue(
    key: ec.EllipticCurvePrivateKey,
    signer: SigningKey,
    subject: x509.Name,
    issuer: x509.Name,
    identifier: x509.SubjectKeyIdentifier,
    now: datetime,
    life: timedelta,
    *,
    authority: bool = False,
    others: Sequence[tuple[x509.ExtensionType, bool]] = (),
) -> Issued:
    begin = whole_second(now) - BACKDATED
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(whole_second(now + life))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(_usage(authority), critical=True)
        .add_extension(identifier, critical=False)
    )
    for extension, critical in others:
        builder = builder.add_extension(extension, critical)
    is_edwards = isinstance(signer, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    certificate = builder.sign(signer, None if is_edwards else hashes.SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(pem, (certificate,))


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _identifier(authority: Certificate) -> x509.SubjectKeyIdentifier:
    try:
        return authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.SubjectKeyIdentifier.from_public_key(authority.public_key())


def names_of(certificate: Certificate) -> frozenset[str]:
    """Its alternative names: hosts and addresses."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in found)


def is_root(certificate: Certificate) -> bool:
    return certificate.subject == certificate.issuer


def is_authority(certificate: Certificate) -> bool:
    """Whether it may issue certificates."""
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


@functools.lru_cache(4096)
def has_issued(authority: Certificate, certificate: Certificate) -> bool:
    """Whether the key of the authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def fingerprint(certificate: Certificate) -> str:
    """Identifies a certificate."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def pem_of(certificates: Iterable[Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def read_certificates(data: bytes) -> tuple[Certificate, ...]:
    """Certificates in PEM format. Raises ValueError."""
    try:
        return tuple(x509.load_pem_x509_certificates(data))
    except ValueError:
        raise ValueError("has no certificate in PEM format, or a damaged one") from None


def read_issued(key: bytes, certificates: bytes) -> Issued:
    """A private key and its certificates. Raises ValueError, whose message does not contain the key."""
    chain = read_certificates(certificates)
    private = _loaded(key)
    if _public(private.public_key()) != _public(chain[0].public_key()):
        raise ValueError(f"the private key does not belong to the certificate {shown(chain[0])}")
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(pem, chain)


def _loaded(key: bytes) -> SigningKey:
    try:
        found = load_pem_private_key(key, None)
    except TypeError:
        raise ValueError("the private key is encrypted: store it without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("the private key is not in PEM format, or damaged") from None
    if not isinstance(found, SigningKey):
        raise ValueError("the private key cannot sign certificates: use an EC, RSA or Ed25519 key")
    return found


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def shown(certificate: Certificate) -> str:
    return certificate.subject.rfc4514_string()


def shown_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
