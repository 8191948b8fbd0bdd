"""Ports that a manifest names."""

from __future__ import annotations

import socket

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.local import Sandbox

pytestmark = pytest.mark.process


def test_a_port_of_the_manifest_in_use_is_an_error(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    sandbox.write("ConsumerGroup", "readers", "{clusterRef: {name: west}}")
    with socket.create_server(("127.0.0.1", sandbox.port)):
        ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert ended.returncode == 1
    assert f"spec.listeners[0].port: {sandbox.port} is in use by another program" in ended.stdout
    assert "127.0.0.1:0" not in ended.stdout
    _, _, orders, readers, *_ = sandbox.run("status").stdout.splitlines()
    nothing_known = ["False", "no", "broker", "of", "the", "cluster", "runs"]
    assert orders.split() == ["Topic", "orders", *nothing_known]
    assert readers.split() == ["ConsumerGroup", "readers", "False", "lag", "unknown", *nothing_known[1:]]
    # Another port is allowed, since the broker has never started; once it has, it is not.
    sandbox.port = fixed_port()
    sandbox.cluster()
    assert sandbox.run("up", "-f", str(sandbox.manifests)).returncode == 0
    assert sandbox.found("Cluster", "west")["status"]["bootstrap"] == f"127.0.0.1:{sandbox.port}"
    sandbox.port = fixed_port()
    sandbox.cluster()
    why = sandbox.run("up", "-f", str(sandbox.manifests)).stderr
    assert "the port of the Internal listener cannot change" in why


def test_a_stopped_cluster_is_not_named_by_an_address(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    with socket.create_server(("127.0.0.1", sandbox.port)):
        ended = sandbox.run("up", "-f", str(sandbox.manifests))
    assert "no broker of the cluster runs" in ended.stdout
    assert ":0" not in ended.stdout.replace("00:00", "")
