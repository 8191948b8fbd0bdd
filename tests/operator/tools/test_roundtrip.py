"""`helm test` against a real broker."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from millstream_harness.certificates import Authority, tls_keys
from millstream_harness.guarded_broker import guarded_broker
from millstream_harness.in_process_broker import InProcessBroker
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import NewTopic, Refusal
from millstream_kafka.client import Security
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import ScramCredential, ScramMechanism
from millstream_operator.tools import roundtrip

pytestmark = pytest.mark.process


def run(monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> None:
    monkeypatch.setattr(sys, "argv", ["roundtrip", bootstrap])
    roundtrip.main()


def test_record_returns_and_its_topic_is_deleted(
    empty_broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, empty_broker.bootstrap)
    assert f"a record went through {empty_broker.bootstrap} in " in capsys.readouterr().out
    with closing(KafkaAdmin(empty_broker.bootstrap)) as admin:
        assert admin.topic_names() == []


def test_change_of_controller_is_waited_for(
    empty_broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As right after the start of a cluster: the broker that is asked is not the controller any more."""
    create, requests = AdminClient.create_topics, 0

    async def refuse_once(admin: AdminClient, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        nonlocal requests
        requests += 1
        if requests == 1:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return await create(admin, topics)

    monkeypatch.setattr(AdminClient, "create_topics", refuse_once)
    run(monkeypatch, empty_broker.bootstrap)
    assert "a record went through" in capsys.readouterr().out
    assert requests == 2


@pytest.mark.parametrize(
    ("bootstrap", "problem"), [("127.0.0.1:1", "127.0.0.1:1: Connect"), ("east", "'east' is not HOST:PORT")]
)
def test_address_without_a_broker_is_reported(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, problem: str
) -> None:
    monkeypatch.setattr(roundtrip, "START_TIMEOUT_S", 0.0)
    with pytest.raises(SystemExit, match=problem):
        run(monkeypatch, bootstrap)


def test_open_cluster_needs_no_login(
    empty_broker: InProcessBroker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["roundtrip", empty_broker.bootstrap, str(tmp_path), str(tmp_path / "ca.crt")]
    )
    roundtrip.main()
    assert "a record went through" in capsys.readouterr().out


def test_authorities_that_come_late_bring_tls_and_a_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, authorities, user = Authority(), tmp_path / "ca.crt", tmp_path / "user"
    user.mkdir()
    (user / "username").write_text("helm")
    (user / "password").write_text("secret")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_SSL",
        "super.users": "User:ANONYMOUS;User:helm",
        **tls_keys(authority.issue().write(tmp_path / "broker.pem")),
    }
    attempt = roundtrip._roundtrip
    attempts: list[bool] = []

    async def observed(bootstrap: str, security: Security | None, retry_timeout: float) -> float:
        attempts.append(security is not None)
        try:
            return await attempt(bootstrap, security, retry_timeout)
        finally:
            authorities.write_text(authority.pem)

    monkeypatch.setattr(roundtrip, "_roundtrip", observed)
    monkeypatch.setattr(roundtrip, "CONNECT_TIMEOUT_S", 0.1)
    with (
        guarded_broker(tmp_path / "data", settings) as guarded,
        closing(KafkaAdmin(guarded.bootstrap)) as admin,
    ):
        password = ScramCredential.of_password("helm", ScramMechanism.SCRAM_SHA_512, "secret")
        assert admin.change_scram_users([password], []) == {"helm": None}
        monkeypatch.setattr(sys, "argv", ["roundtrip", guarded.login, str(user), str(authorities)])
        roundtrip.main()
    assert attempts == [False, True]
    assert "a record went through" in capsys.readouterr().out
