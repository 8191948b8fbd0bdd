"""How jobs connect: configuration of clients and of Spark, and a login whose files are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_jobs.brokers import AuthoritiesMissing, Brokers, Login, LoginMissing, Tls


def test_without_a_login_clients_get_the_address_alone() -> None:
    assert Brokers("b:9092").client() == {"bootstrap.servers": "b:9092"}
    assert Brokers("b:9092").source() == {"kafka.bootstrap.servers": "b:9092"}


def test_spark_gets_a_reference_to_the_password_and_python_itself(tmp_path: Path) -> None:
    for name in ("username", "password", "sasl.jaas.config"):
        (tmp_path / name).write_text(f"{name} of the Secret\n")
    brokers = Brokers("b:9092", Login(str(tmp_path)))
    assert brokers.client()["sasl.password"] == "password of the Secret"
    source = brokers.source()
    assert source["kafka.sasl.jaas.config"] == f"${{directory:{tmp_path}:sasl.jaas.config}}"
    assert not any("of the Secret" in value for value in source.values())
    (tmp_path / "password").write_text("another")
    assert brokers.client()["sasl.password"] == "another"


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("has_login", [False, True], ids=["tls", "login"])
def test_clients_and_spark_trust_the_file_of_authorities(tmp_path: Path, has_login: bool) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(CERTIFICATE)
    for name in ("username", "password", "sasl.jaas.config"):
        (tmp_path / name).write_text(name)
    brokers = Brokers("b:9090", Login(str(tmp_path)) if has_login else None, Tls(str(file)))
    protocol = "SASL_SSL" if has_login else "SSL"
    client, source = brokers.client(), brokers.source()
    assert (client["security.protocol"], client["ssl.ca.location"]) == (protocol, str(file))
    assert source["kafka.security.protocol"] == protocol
    assert source["kafka.ssl.truststore.type"] == "PEM"
    assert source["kafka.ssl.truststore.location"] == str(file)
    assert ("sasl.password" in client, "kafka.sasl.jaas.config" in source) == (has_login, has_login)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"", "has no certificate in PEM format"),
        (b"\xff", "it is not UTF-8 text"),
    ],
    ids=["missing", "empty", "no text"],
)
def test_file_without_authorities_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)
    brokers = Brokers("b:9090", tls=Tls(str(file)))
    for configure in (brokers.client, brokers.source):
        with pytest.raises(AuthoritiesMissing, match=rf"tls\.caFile: {file}.*{words}"):
            configure()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file or directory"), (b"", "is empty"), (b"\xff", "it is not UTF-8 text")],
    ids=["missing", "empty", "no text"],
)
def test_login_without_its_files_names_the_file(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        for name in ("username", "sasl.jaas.config"):
            (tmp_path / name).write_bytes(content)
    brokers = Brokers("b:9092", Login(str(tmp_path)))
    with pytest.raises(LoginMissing, match=words):
        brokers.client()
    with pytest.raises(LoginMissing, match=r"sasl\.jaas\.config"):
        brokers.source()
