"""Client properties in Java's spelling become librdkafka's settings; errors name the setting, and contain no value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.client_properties import spelled, translated
from millstream.connection import Cluster
from millstream.errors import BadInput, Unreachable

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
LOGIN = f'{SCRAM} username="alice" password="open sesame";'


@pytest.mark.parametrize(
    ("jaas", "settings"),
    [
        (LOGIN, {"sasl.username": "alice", "sasl.password": "open sesame"}),
        (
            f'{SCRAM}  username = "a\\"b"\n password=x=1 ; ',
            {"sasl.username": 'a"b', "sasl.password": "x=1"},
        ),
        (
            LOGIN.replace("scram.Scram", "plain.Plain").replace('"open sesame"', '""'),
            {"sasl.username": "alice", "sasl.password": ""},
        ),
        (
            f'{OAUTH} clientId="me" clientSecret="s" scope="kafka";',
            {
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.scope": "kafka",
            },
        ),
    ],
)
def test_login_modules(jaas: str, settings: dict[str, str]) -> None:
    assert translated({"sasl.jaas.config": jaas}) == settings


def test_stores_in_pem_format(tmp_path: Path) -> None:
    ca, both = tmp_path / "ca.pem", tmp_path / "both.pem"
    ca.write_text(CERTIFICATE)
    both.write_text(f"-----BEGIN PRIVATE KEY-----\nx\n{CERTIFICATE}")
    assert translated(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
            "ssl.key.password": "p",
            "ssl.endpoint.identification.algorithm": "",
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        }
    ) == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(both),
        "ssl.key.location": str(both),
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    inline = {"ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nx\n"}
    assert translated(inline) == {"ssl.ca.pem": "-----BEGIN CERTIFICATE-----\nx\n"}


def test_key_stores_of_pkcs12_stay_with_their_password(tmp_path: Path) -> None:
    store = tmp_path / "client.p12"
    store.write_bytes(b"\x30\x82")
    given = {"ssl.keystore.location": str(store), "ssl.keystore.password": "p", "ssl.keystore.type": "PKCS12"}
    assert translated(given) == {"ssl.keystore.location": str(store), "ssl.keystore.password": "p"}


def test_settings_of_librdkafka_stay_as_they_are() -> None:
    given: dict[str, Any] = {
        "sasl.mechanisms": "PLAIN",
        "sasl.password": r"a\b",
        "ssl.ca.location": "/nowhere",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert translated(given) == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"sasl.jaas.config": "sesame"},
            "c: sasl.jaas.config cannot be read: write MODULE required username=",
        ),
        (
            {"sasl.jaas.config": f'{SCRAM} username="a" sesame;'},
            "c: sasl.jaas.config cannot be read: write MODULE required",
        ),
        (
            {"sasl.jaas.config": f'{SCRAM} username="sesame";'},
            'c: sasl.jaas.config has no password: write password="..." before the semicolon',
        ),
        (
            {"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
            "login module Krb5LoginModule is not supported: use PlainLoginModule, ScramLoginModule, OAuth",
        ),
        (
            {"sasl.jaas.config": LOGIN, "sasl.password": "other"},
            "c: sasl.jaas.config is given, and so is sasl.password: give one of them",
        ),
        (
            {"ssl.truststore.location": "{jks}"},
            "c: ssl.truststore.location: {jks} is a JKS truststore, and PEM is needed: convert it: keytool -import",
        ),
        (
            {"ssl.truststore.location": "{p12}"},
            "{p12} is a PKCS12 truststore, and PEM is needed: write its certificates in PEM format: openssl pkcs12",
        ),
        ({"ssl.keystore.location": "{jks}"}, "ssl.keystore.location: {jks} is a JKS keystore: convert it"),
        (
            {"ssl.keystore.location": "{p12}", "ssl.keystore.type": "PEM"},
            "{p12} is not in PEM format: set ssl.keystore.type, or name another",
        ),
        (
            {"ssl.truststore.location": "{p12}.absent"},
            "c: ssl.truststore.location: {p12}.absent cannot be read: No such file or directory: name a file in PEM",
        ),
    ],
)
def test_errors_name_the_setting(tmp_path: Path, given: dict[str, str], said: str) -> None:
    stores = {"jks": tmp_path / "s.jks", "p12": tmp_path / "s.p12"}
    stores["jks"].write_bytes(b"\xfe\xed\xfe\xed\0")
    stores["p12"].write_bytes(b"\x30\x82")
    filled = {key: value.format(**stores) if value[0] == "{" else value for key, value in given.items()}
    with pytest.raises(BadInput) as raised:
        translated(filled, "c")
    assert str(raised.value).startswith("c: ")
    assert said.format(**stores) in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_advice_names_settings_as_the_file_does() -> None:
    advice = "set ssl.ca.location to the authority"
    assert spelled(advice, {"ssl.ca.location": "x"}) == advice
    assert spelled(advice, {"sasl.jaas.config": "x"}) == "set ssl.truststore.location to the authority"


def test_setting_that_librdkafka_does_not_know_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_text("bootstrap.servers=127.0.0.1:1\nssl.protocol=TLSv1.3\n")
    cluster = Cluster.from_file(str(path))
    assert cluster.addresses == [("127.0.0.1", 1)]
    assert Cluster.from_file(str(path), "localhost:2").addresses == [("localhost", 2)]
    with pytest.raises(Unreachable):
        _ = cluster.admin  # nothing is there
    cluster.why_unreachable = lambda: ""  # type: ignore[method-assign]
    with pytest.raises(BadInput) as raised:
        _ = cluster.admin
    assert str(raised.value).startswith(f'config: {path}: No such configuration property: "ssl.protocol"')
