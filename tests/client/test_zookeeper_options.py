"""Options for the connection to ZooKeeper, without one."""

from __future__ import annotations

import pytest

from millstream.consuming.settings import ConnectorSettings
from millstream.consuming.zookeeper.registry import _secured
from millstream.errors import BadInput


def test_other_options_are_refused() -> None:
    with pytest.raises(BadInput, match="zookeeper_config: handler is not allowed"):
        ConnectorSettings(coordination="zookeeper", zookeeper="zk", zookeeper_config={"handler": 1})
    with pytest.raises(BadInput, match="not allowed without zookeeper"):
        ConnectorSettings(zookeeper_config={"use_ssl": True})
    secret = {"sasl_options": {"password": "hidden"}}
    assert "hidden" not in repr(
        ConnectorSettings(coordination="zookeeper", zookeeper="zk", zookeeper_config=secret)
    )


def test_hosts_are_verified_by_default() -> None:
    assert _secured({"use_ssl": True}) == {"use_ssl": True, "check_hostname": True}
    assert _secured({"use_ssl": True, "check_hostname": False})["check_hostname"] is False
    assert _secured({"use_ssl": True, "verify_certs": False})["check_hostname"] is False
    assert _secured({}) == {"check_hostname": False}
