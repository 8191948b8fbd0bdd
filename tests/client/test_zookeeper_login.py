"""The registry of consumers in a ZooKeeper with TLS and SASL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.consuming.zookeeper import registry
from millstream.consuming.zookeeper.registry import KazooError, Registry
from millstream.errors import Unreachable
from millstream_harness.certificates import Authority
from millstream_harness.cluster import until
from millstream_harness.secured_zookeeper import USERS, SecuredZooKeeper

pytestmark = pytest.mark.soak


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # kazoo leaves sockets to the collector
def test_a_consumer_connects_by_tls_and_sasl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    with SecuredZooKeeper(
        tmp_path, authority=authority, needs_client_certificate=True, users=USERS
    ) as server:
        own = str(tmp_path / "broker.pem")
        user, password = next(iter(USERS.items()))
        options: dict[str, Any] = {
            "use_ssl": True,
            "ca": str(tmp_path / "trusted.pem"),
            "certfile": own,
            "keyfile": own,
            "sasl_options": {"mechanism": "DIGEST-MD5", "username": user, "password": password},
        }
        connected = Registry(server.connect, "g", 10, options)
        try:
            connected.register("c", {"t": 1})
            connected.touch()
        finally:
            connected.close()
        monkeypatch.setattr(registry, "CONNECT_TIMEOUT_S", 3.0)
        for wrong in (
            {"sasl_options": {**options["sasl_options"], "password": "wrong"}},
            {"use_ssl": False},
        ):
            with pytest.raises(Unreachable, match="or it refuses the connection"):
                Registry(server.connect, "g", 10, options | wrong)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SecuredZooKeeper]:
    with SecuredZooKeeper(tmp_path / "z", users=USERS, is_enforced=True) as server:
        yield server


def consumer(server: SecuredZooKeeper, password: str) -> Registry:
    login = {"mechanism": "DIGEST-MD5", "username": "broker", "password": password}
    return Registry(f"{server.host}:{server.port}", "g", 10.0, {"sasl_options": login})


def is_served(of: Registry) -> bool:
    try:
        of.touch()
    except KazooError:
        return False
    return True


def restart(server: SecuredZooKeeper, password: str) -> None:
    server.kill()
    server.users = {"broker": password}
    server.start()


def test_a_first_login_that_is_refused_raises(server: SecuredZooKeeper) -> None:
    with pytest.raises(Unreachable, match="or it refuses the connection"):
        consumer(server, "wrong")


def test_a_consumer_whose_later_login_is_refused_logs_in_again(
    server: SecuredZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    ours = consumer(server, USERS["broker"])
    try:
        first = ours.session
        restart(server, "changed")
        until(lambda: "refuses the login, retrying" in caplog.text, "the login is refused")
        restart(server, USERS["broker"])
        until(lambda: is_served(ours), "the consumer has logged in again")
        assert ours.session != first
    finally:
        ours.close()
