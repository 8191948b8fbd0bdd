"""Brokers of a local Cluster log in to its ZooKeeper, where others read no secret; one that exists goes over."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo import exceptions as kazoo
from kazoo.client import KazooClient

from millstream_harness.local import Sandbox, consume, produce
from millstream_operator.local import zookeeper
from millstream_operator.local.processes import wait_for
from millstream_operator.local.zookeeper_login import ZooKeeperLogin

pytestmark = pytest.mark.soak

SPEC = """{{brokers: {{replicas: 2}}, zookeeper: {{replicas: 1}},
  listeners: [{{name: internal, type: Internal, port: {}}}]}}"""
command = zookeeper.command


def earlier_command(file: Path, login: Path) -> list[str]:
    """The server of an earlier release, without SASL."""
    return [word for word in command(file, login) if str(login) not in word]


def reads_secret(sandbox: Sandbox) -> bool:
    """Whether a client without a password reads the brokers' secret; what is none, it can read."""
    lines = (sandbox.data / "clusters/west/zookeeper.cfg").read_text().splitlines()
    port = next(line.partition("=")[2] for line in lines if line.startswith("clientPort="))
    client = KazooClient(f"127.0.0.1:{port}")
    client.start(30)
    try:
        assert client.get("/brokers/topics/orders")[0]
        client.get("/cluster/secret")
    except kazoo.NoAuthError:
        return False
    else:
        return True
    finally:
        client.stop()
        client.close()


def test_a_cluster_from_before_goes_over_without_losing_records(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.write("Cluster", "west", SPEC.format(sandbox.port))
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}, replicationFactor: 2}")
    with monkeypatch.context() as earlier:
        earlier.setattr(ZooKeeperLogin, "create", lambda self: None)
        earlier.setattr(zookeeper, "command", earlier_command)
        assert sandbox.runtime().up(sandbox.manifests).failures == {}
    bootstrap = sandbox.found("Cluster", "west")["status"]["bootstrap"]
    produce(bootstrap, "orders", 100)
    assert reads_secret(sandbox)
    brokers = [sandbox.pid(f"broker/default/west/{broker}") for broker in range(2)]
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert [sandbox.pid(f"broker/default/west/{broker}") for broker in range(2)] == brokers

    sandbox.runtime().down()
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    assert wait_for(lambda: not reads_secret(sandbox), 60.0)
    assert consume(bootstrap, "orders", 100) == list(range(100))
    folder = sandbox.data / "clusters/west"
    login = ZooKeeperLogin(folder)
    assert [file.stat().st_mode & 0o777 for file in (login.server, login.brokers)] == [0o600, 0o600]
    password = login.brokers.read_text().rpartition('password="')[2].partition('"')[0]
    assert len(password) > 30
    others = [file for file in folder.glob("*.*") if file not in (login.server, login.brokers)]
    assert not [file.name for file in others if password in file.read_text(errors="replace")]
