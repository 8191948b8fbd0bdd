"""The registry of consumers in a ZooKeeper with TLS and SASL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.consuming.zookeeper import registry
from millstream.consuming.zookeeper.registry import Registry
from millstream.errors import Unreachable
from millstream_harness.certificates import Authority
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
