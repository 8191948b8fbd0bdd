"""Client configurations for Users, as their readers read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.connection import Cluster
from millstream_operator.resources.client_files import (
    FORMATS,
    ClientLogin,
    ClientTls,
    java,
    librdkafka,
    python,
)

PASSWORDS = ["open sesame", 'a"b', "a\\b", "a=b:c#d;", "é😀", "\\u0041", "'\"\\"]


def login(password: str, authority: str = "") -> ClientLogin:
    tls = ClientTls(authority, are_files=True) if authority else None
    return ClientLogin("b:9092", "alice@example", password, tls)


@pytest.mark.parametrize("password", PASSWORDS)
def test_every_format_has_the_password(password: str, tmp_path: Path) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice@example",
        "sasl.password": password,
    }
    path = tmp_path / "client"
    for write in (java, librdkafka):
        path.write_text(write(login(password)))
        cluster = Cluster.from_file(str(path))
        assert (cluster.bootstrap, cluster.config) == ("b:9092", settings)
    found: dict[str, dict[str, str]] = {}
    exec(python(login(password)), found)
    assert found["config"] == {"bootstrap.servers": "b:9092", **settings}


def test_javas_properties_are_ascii() -> None:
    assert java(login("é😀")).isascii()
    (line,) = [one for one in java(login('"\\é')).splitlines() if one.startswith("sasl.jaas")]
    assert line.endswith(r'password="\\"\\\\\u00e9";')


def test_authorities_mean_tls(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    for form, write in FORMATS.items():
        assert "SASL_SSL" in write(login("x", str(authority))), form
    path = tmp_path / "client"
    path.write_text(java(login("x", str(authority))))
    assert Cluster.from_file(str(path)).config["ssl.ca.location"] == str(authority)


def test_nothing_shows_the_password() -> None:
    assert "sesame" not in repr(login("sesame"))
