"""Keystores and truststores, in each format, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from millstream_broker.config.config import BrokerConfig, ListenerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.security.tls.keystores import read_keystore, read_truststore
from millstream_harness.certificates import HOUR, Authority, Issued

PASSWORD = "open sesame"
ROOT = Authority()
AUTHORITY = Authority("Intermediate CA", ROOT)


def values(**given: str) -> ListenerConfig:
    """Keys without their common beginning, `_` for `.`."""
    keys = {f"ssl.{key.replace('_', '.')}": value for key, value in given.items()}
    return BrokerConfig(keys).of_listener("SSL")


def test_a_pem_file_has_key_and_chain(tmp_path: Path) -> None:
    issued = AUTHORITY.issue()
    path = issued.write(tmp_path / "k.pem")
    keys = read_keystore(values(keystore_type="PEM", keystore_location=str(path)))
    assert keys is not None
    assert keys.chain == tuple(issued.chain)
    assert len(keys.chain) == 2
    assert keys.key.decode() == issued.key_pem()
    assert "PRIVATE" not in repr(keys)


def test_an_encrypted_key_is_decrypted(tmp_path: Path) -> None:
    issued = AUTHORITY.issue()
    (tmp_path / "k.pem").write_text(issued.pem(PASSWORD))
    given = {"keystore_type": "PEM", "keystore_location": str(tmp_path / "k.pem")}
    keys = read_keystore(values(**given, key_password=PASSWORD))
    assert keys is not None
    assert keys.key.decode() == issued.key_pem()


@pytest.mark.parametrize("change", [str, lambda text: " ".join(text.split("\n"))], ids=["lines", "one line"])
def test_pem_may_be_in_the_configuration(change: Callable[[str], str]) -> None:
    issued = AUTHORITY.issue()
    given = {
        "keystore_key": change(issued.key_pem()),
        "keystore_certificate_chain": change(issued.chain_pem()),
    }
    keys = read_keystore(values(keystore_type="PEM", **given))
    assert keys is not None
    assert keys.chain == tuple(issued.chain)
    trusted = values(truststore_type="PEM", truststore_certificates=change(ROOT.pem + AUTHORITY.pem))
    assert read_truststore(trusted) == (ROOT.certificate, AUTHORITY.certificate)


@pytest.mark.parametrize("store_type", ["PKCS12", "JKS"])
def test_pkcs12_is_read_by_both_of_javas_types(tmp_path: Path, store_type: str) -> None:
    issued = AUTHORITY.issue()
    (tmp_path / "k.p12").write_bytes(issued.pkcs12(PASSWORD))
    given = {"keystore_type": store_type, "keystore_location": str(tmp_path / "k.p12")}
    keys = read_keystore(values(**given, keystore_password=PASSWORD))
    assert keys is not None
    assert keys.chain == tuple(issued.chain)


def test_a_pkcs12_truststore_has_certificates_alone(tmp_path: Path) -> None:
    encryption = BestAvailableEncryption(PASSWORD.encode())
    store = pkcs12.serialize_key_and_certificates(None, None, None, [ROOT.certificate], encryption)
    (tmp_path / "t.p12").write_bytes(store)
    given = {"truststore_type": "PKCS12", "truststore_location": str(tmp_path / "t.p12")}
    assert read_truststore(values(**given, truststore_password=PASSWORD)) == (ROOT.certificate,)


def test_without_a_store_there_are_no_certificates() -> None:
    assert read_keystore(values()) is None
    assert read_truststore(values()) == ()


Content = Callable[[Issued], str | bytes]


@pytest.mark.parametrize(
    ("given", "content", "problem"),
    [
        ({"keystore_type": "PEM"}, lambda one: one.key_pem(), "has no certificate in PEM format"),
        (
            {"keystore_type": "PEM"},
            lambda one: one.chain_pem(),
            "has 0 private keys in PEM format: expected 1",
        ),
        (
            {"keystore_type": "PEM"},
            lambda one: one.pkcs12(PASSWORD),
            "is not in PEM format: correct ssl.keystore.type",
        ),
        ({"keystore_type": "PEM"}, lambda one: b"", "has 0 bytes"),
        (
            {"keystore_type": "PEM", "keystore_password": PASSWORD},
            lambda one: one.pem(),
            "ssl.keystore.password: a PEM file has no password",
        ),
        (
            {"keystore_type": "PEM"},
            lambda one: one.pem(PASSWORD),
            "the private key is encrypted: set ssl.key.password",
        ),
        (
            {"keystore_type": "PEM", "key_password": PASSWORD},
            lambda one: one.pem(),
            "the private key is not encrypted: remove ssl.key.password",
        ),
        (
            {"keystore_type": "PEM", "key_password": "wrong"},
            lambda one: one.pem(PASSWORD),
            "the private key cannot be decrypted: ssl.key.password is wrong",
        ),
        (
            {"keystore_type": "PEM"},
            lambda one: AUTHORITY.issue("other").key_pem() + one.chain_pem(),
            "the private key does not belong to the first certificate, CN=broker",
        ),
        (
            {"keystore_type": "PEM"},
            lambda one: one.pem() + Authority("Stranger").pem,
            "the certificate CN=Stranger did not issue the one before it, CN=Intermediate CA",
        ),
        ({}, lambda one: one.pem(), "is a PEM file: set ssl.keystore.type=PEM"),
        (
            {},
            lambda one: b"\xfe\xed\xfe\xed rest",
            "is a JKS file, which brokers do not read. Convert it: keytool -impor",
        ),
        ({"keystore_type": "PKCS12"}, lambda one: b"\x31rest", "is not a PKCS12 file"),
        (
            {"keystore_type": "PKCS12", "keystore_password": "wrong"},
            lambda one: one.pkcs12(PASSWORD),
            "cannot be decrypted: ssl.keystore.password is wrong, or the file is damaged",
        ),
        (
            {"keystore_type": "PKCS12"},
            lambda one: one.pkcs12(PASSWORD),
            "cannot be decrypted: ssl.keystore.password is not set, or the file is damaged",
        ),
        (
            {"keystore_type": "PEM", "keystore_key": "x"},
            lambda one: one.pem(),
            "is set, and so is ssl.keystore.key or ssl.keystore.certificate.chain: set only one of them",
        ),
    ],
)
def test_a_wrong_keystore_is_named(
    tmp_path: Path, given: dict[str, str], content: Content, problem: str
) -> None:
    path, found = tmp_path / "k.store", content(AUTHORITY.issue())
    path.write_bytes(found if isinstance(found, bytes) else found.encode())
    with pytest.raises(ConfigError) as error:
        read_keystore(values(keystore_location=str(path), **given))
    assert problem in str(error.value)
    assert PASSWORD not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ssl\.keystore\.location=.*none\.pem: cannot be read: No such file"
    ):
        read_keystore(values(keystore_type="PEM", keystore_location=str(tmp_path / "none.pem")))


def test_a_key_without_its_chain_is_named() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.certificate\.chain: is not set"):
        read_keystore(values(keystore_type="PEM", keystore_key=AUTHORITY.issue().key_pem()))


def test_errors_name_the_listeners_own_key(tmp_path: Path) -> None:
    config = BrokerConfig({"listener.name.ssl.ssl.keystore.location": str(tmp_path / "none.p12")})
    with pytest.raises(ConfigError, match=r"^listener\.name\.ssl\.ssl\.keystore\.location="):
        read_keystore(config.of_listener("SSL"))


@pytest.mark.parametrize(
    ("begin", "end", "problem"),
    [
        (-HOUR, HOUR, None),
        (-2 * HOUR, -HOUR, "the certificate CN=broker expired at "),
        (HOUR, 2 * HOUR, "the certificate CN=broker is not valid before "),
    ],
)
def test_certificates_outside_their_time_are_named(
    tmp_path: Path, begin: timedelta, end: timedelta, problem: str | None
) -> None:
    path = AUTHORITY.issue(begin=begin, end=end).write(tmp_path / "k.pem")
    keys = read_keystore(values(keystore_type="PEM", keystore_location=str(path)))
    assert keys is not None
    found = keys.problem(datetime.now(UTC))
    assert found is None if problem is None else str(found).startswith(problem)
