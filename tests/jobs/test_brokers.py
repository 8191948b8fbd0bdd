"""How jobs connect: configuration of clients and of Spark, and a login whose files are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_jobs.brokers import Brokers, Login, LoginMissing


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
