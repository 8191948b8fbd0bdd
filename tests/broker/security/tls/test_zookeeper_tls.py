"""Keystores and truststores for ZooKeeper, and files that change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.security.tls.zookeeper_tls import ZooKeeperTls
from millstream_harness.certificates import Authority

PASSWORD = "open sesame"
AUTHORITY = Authority()


def tls(**given: object) -> ZooKeeperTls:
    """Keys without their common beginning, `_` for `.`."""
    keys = {f"zookeeper.ssl.{key.replace('_', '.')}": str(value) for key, value in given.items()}
    return ZooKeeperTls(BrokerConfig({"zookeeper.ssl.client.enable": "true", **keys}))


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    (tmp_path / "trusted.pem").write_text(AUTHORITY.pem)
    return tmp_path / "trusted.pem"


def test_the_type_of_a_file_is_that_of_its_ending(tmp_path: Path, trusted: Path) -> None:
    issued = AUTHORITY.issue()
    (tmp_path / "k.p12").write_bytes(issued.pkcs12(PASSWORD))
    (tmp_path / "k.pem").write_text(issued.pem(PASSWORD))
    for name in ("k.p12", "k.pem"):
        found = tls(
            keystore_location=tmp_path / name, keystore_password=PASSWORD, truststore_location=trusted
        )
        assert found.has_certificate
        assert len(found.context().get_ca_certs()) == 1


def test_hosts_are_verified_unless_the_algorithm_is_empty(trusted: Path) -> None:
    assert tls(truststore_location=trusted).context().check_hostname
    context = tls(truststore_location=trusted, endpoint_identification_algorithm="").context()
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    ("given", "versions"),
    [
        ({}, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)),
        ({"protocol": "TLSv1.2"}, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)),
        ({"enabled_protocols": "TLSv1.3"}, (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)),
    ],
)
def test_versions_are_those_of_the_keys(
    given: dict[str, str], versions: tuple[ssl.TLSVersion, ssl.TLSVersion], trusted: Path
) -> None:
    context = tls(truststore_location=trusted, **given).context()
    assert (context.minimum_version, context.maximum_version) == versions


@pytest.mark.parametrize(
    ("name", "content", "given", "problem"),
    [
        ("k.jks", b"\xfe\xed\xfe\xed0", {}, "and zookeeper.ssl.keystore.type=PKCS12"),
        ("k.keystore", b"0", {}, "set zookeeper.ssl.keystore.type, or end its name with .jks"),
        ("k.p12", AUTHORITY.issue().pkcs12("other"), {}, "zookeeper.ssl.keystore.password is wrong"),
        ("k.pem", AUTHORITY.issue().pem("other").encode(), {}, "zookeeper.ssl.keystore.password is wrong"),
        ("k.pem", AUTHORITY.pem.encode(), {}, "has 0 private keys in PEM format"),
    ],
)
def test_a_wrong_keystore_is_named_with_what_to_do(
    name: str, content: bytes, given: dict[str, str], problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"^zookeeper\.ssl\.keystore\.") as error:
        tls(keystore_location=tmp_path / name, keystore_password=PASSWORD, **given)
    assert problem in str(error.value)
    assert PASSWORD not in str(error.value)


def test_a_new_file_is_read_for_the_next_connection(trusted: Path) -> None:
    found = tls(truststore_location=trusted)
    before = found.context()
    assert found.context() is before
    trusted.write_text(AUTHORITY.pem + Authority("Next CA").pem)
    os.utime(trusted, ns=(1, 1))
    assert len(found.context().get_ca_certs()) == 2


def test_a_new_file_that_cannot_be_used_is_refused_once_and_the_old_one_stays(
    trusted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = tls(truststore_location=trusted)
    before = found.context()
    trusted.unlink()
    assert found.context() is before
    assert found.context() is before
    assert [each.getMessage().partition(":")[0] for each in caplog.records if each.levelname == "ERROR"] == [
        "new files for ZooKeeper are refused, and the old ones stay in use"
    ]
    trusted.write_text(AUTHORITY.pem)
    assert found.context() is not before
