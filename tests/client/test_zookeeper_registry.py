"""The registry of consumers in ZooKeeper, whose servers end connections at any moment."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.protocol.connection import ConnectionHandler

from millstream.consuming.zookeeper import registry
from millstream.consuming.zookeeper.registry import Registry
from millstream.errors import Unreachable


def test_a_server_that_stops_during_the_login_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo's thread ends for good if a login fails: here only if it is refused."""
    attempts: list[str] = []

    def connect(handler: Any, host: str, *args: Any) -> None:
        attempts.append(host)
        if len(attempts) < 2:
            raise AuthFailedError("the connection was lost") from ConnectionDropped()
        raise AuthFailedError("the password is wrong")

    monkeypatch.setattr(registry, "CONNECT_TIMEOUT_S", 2.0)
    monkeypatch.setattr(ConnectionHandler, "_connect", connect)
    with pytest.raises(Unreachable):
        Registry("127.0.0.1:1", "g", 10.0)
    assert len(attempts) == 2
