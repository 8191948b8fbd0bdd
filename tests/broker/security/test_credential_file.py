"""SCRAM credentials in a file of a listener: logins by them, and what happens when the file changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from millstream_broker.config.config import BrokerConfig
from millstream_broker.config.config_types import ConfigError
from millstream_broker.coordination.entities import Entity
from millstream_broker.security.credential_file import MAX_FILE_BYTES, CredentialFile
from millstream_broker.security.mechanisms.scram import ScramAuthenticator
from millstream_broker.security.scram_credentials import ScramCredentials
from millstream_broker.startup import start
from millstream_harness.in_process import running
from millstream_kafka.admin.access import ScramCredential
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import AuthenticationFailed, BrokerError
from millstream_kafka.client.scram import ScramClient
from millstream_kafka.client.security import Credential, Sasl, Security
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.scram_mechanism import ScramMechanism

SHA_512 = ScramMechanism.SCRAM_SHA_512


def line(user: str, password: str, salt: bytes = b"salt", iterations: int = 4096) -> str:
    return ScramCredential.of_password(user, SHA_512, password, iterations=iterations, salt=salt).line


def replace(path: Path, text: str) -> None:
    """In one step, as Kubernetes replaces the files of a Secret."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


class Tree:
    def __init__(self, users: Mapping[str, str]) -> None:
        self.entity_configs = {Entity(user=user): {SHA_512.label: text} for user, text in users.items()}
        self.on_entities: list[object] = []


def login(path: Path, **users: str) -> Callable[[str, str], Any]:
    """Logs in as a user of the file, or of coordination."""
    stored = {user: line(user, password).rpartition(" ")[2] for user, password in users.items()}
    known = ScramCredentials(cast(Any, Tree(stored)))
    authenticator = ScramAuthenticator(SHA_512, known, b"secret", CredentialFile(path))

    async def log_in(user: str, password: str) -> str:
        client, exchange = ScramClient(SHA_512.label, user, password), authenticator.begin()
        first = await exchange.step(client.first())
        final = await exchange.step(client.final(first.auth_bytes))
        client.verify(final.auth_bytes)
        assert final.identity is not None
        return final.identity.principal

    return log_in


async def test_a_user_with_two_credentials_may_use_either_password(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(f"{line('platform', 'new')}\n{line('platform', 'old')}\n")
    log_in = login(path)
    for password in ("new", "old"):
        assert await log_in("platform", password) == "User:platform"
    with pytest.raises(ApiError):
        await log_in("platform", "other")


async def test_a_changed_file_applies_to_the_next_login(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(line("platform", "old"))
    log_in = login(path)
    assert await log_in("platform", "old") == "User:platform"
    replace(path, line("platform", "new"))
    assert await log_in("platform", "new") == "User:platform"
    with pytest.raises(ApiError):
        await log_in("platform", "old")


async def test_others_are_looked_up_in_coordination_and_users_of_the_file_are_not(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(line("platform", "right"))
    log_in = login(path, alice="hers", platform="stored by somebody")
    assert await log_in("alice", "hers") == "User:alice"
    assert await log_in("platform", "right") == "User:platform"
    with pytest.raises(ApiError):
        await log_in("platform", "stored by somebody")


async def test_a_file_that_is_spoiled_or_gone_changes_nothing_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "credentials"
    path.write_text(line("platform", "right"))
    log_in = login(path)
    caplog.set_level(logging.ERROR)
    replace(path, f"{line('platform', 'other')}\nplatform SCRAM-SHA-512 salt=secret")
    for _ in range(2):
        assert await log_in("platform", "right") == "User:platform"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith("stay: line 2: expected salt, stored_key, server_key and iterations"), said
    path.unlink()
    assert await log_in("platform", "right") == "User:platform"
    assert "No such file" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("platform SCRAM-SHA-1 x", "line 1: expected USER SCRAM-SHA-256|SCRAM-SHA-512 CREDENTIAL"),
        ("\nplatform", "line 2: expected USER"),
        (line("platform", "x", iterations=4095), "line 1: 4095 iterations: expected 4096 or more"),
        (
            f"{line('a', 'x')}\n{line('a', 'y', salt=b'other')}",
            "line 2: the credentials of a user need the same salt",
        ),
        (
            f"{line('a', 'x')}\n{line('a', 'y', iterations=5000)}",
            "line 2: the credentials of a user need the same",
        ),
        (b"\xff", "it is not UTF-8 text"),
        (" " * (MAX_FILE_BYTES + 1), "it is larger than 1,048,576 bytes"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | bytes | None, problem: str) -> None:
    path = tmp_path / "credentials"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refused:
        CredentialFile(path)
    words = str(refused.value)
    assert words.startswith(f"sasl.scram.credentials.location={path}: {problem}")
    assert words.endswith("with the values of /config/users/USER and no password")


async def test_a_broker_with_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("alice SCRAM-SHA-512 password=open sesame")
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": SHA_512.label,
        "listener.name.plaintext.sasl.scram.credentials.location": str(path),
        "log.dirs": str(tmp_path / "data"),
    }
    with pytest.raises(ConfigError, match=r"credentials: line 1: expected USER SCRAM-SHA-256"):
        await start(BrokerConfig(config))
    assert not (tmp_path / "data").exists()


async def test_a_broker_serves_the_users_of_its_file_before_any_other_exists(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(line("platform", "right"))
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": SHA_512.label,
        "listener.name.plaintext.sasl.scram.credentials.location": str(path),
        "connection.failed.authentication.delay.ms": "0",
    }

    def client(password: str) -> ClusterClient:
        user, secret = (Credential("test", "test", value=value) for value in ("platform", password))
        return ClusterClient(
            address, "test", security=Security(sasl=Sasl(SHA_512.label, user, secret)), retry_timeout=0
        )

    async with running(tmp_path / "data", config) as broker:
        (listener,) = next(iter(broker.replicas.metadata.state.brokers.values())).listeners
        address = f"{listener.host}:{listener.port}"
        async with client("right") as found:
            await found.metadata([])
        with pytest.raises(BrokerError) as refused:
            async with client("wrong") as found:
                await found.metadata([])
        assert isinstance(refused.value, AuthenticationFailed)
