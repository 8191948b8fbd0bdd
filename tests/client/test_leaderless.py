"""Partitions without a leader: `millstream` reports them and does not hang."""

from __future__ import annotations

import json

import pytest

from millstream_harness.command import millstream
from millstream_harness.in_process_cluster import InProcessCluster

pytestmark = pytest.mark.soak


def test_a_partition_without_a_leader(cluster: InProcessCluster) -> None:
    def run(*arguments: str, status: int = 0, stdin: bytes = b"") -> tuple[str, str]:
        ended = millstream(*arguments, stdin=stdin, bootstrap=cluster.bootstrap)
        assert ended.returncode == status, ended.stderr.decode()
        return ended.stdout.decode(), ended.stderr.decode()

    run("topic", "create", "orders", "-p", "3", "-r", "1")
    for number in range(3):
        run("produce", "orders", "--partition", str(number), stdin=b"a\nb\nc\n" * 100)
    run("consume", "orders", "--group", "readers")
    partitions = json.loads(run("topic", "describe", "orders", "-o", "json")[0])["partitions"]
    lost = partitions[1]["leader"]
    cluster.leader("orders", 1).kill()
    described = ""
    while "none" not in described:
        described, _ = run("topic", "describe", "orders")
    info = {"brokers": [{"broker": lost}]}
    while lost in [
        one["broker"] for one in info["brokers"]
    ]:  # for a moment longer, for clients that look for a leader
        info = json.loads(run("cluster", "info", "-o", "json")[0])
    partition = json.loads(run("topic", "describe", "orders", "-o", "json")[0])["partitions"][1]
    assert (partition["leader"], partition["earliest"], partition["latest"]) == (-1, None, None)
    problem = (
        f"millstream: partition 1 of orders has no leader: its in-sync replicas are on {lost}; start one of these "
        "brokers (millstream cluster info shows which brokers are up)\n"
    )
    found = f"1 partition has no leader: orders-1; start broker {lost}, which should have it;"
    assert found in run("doctor", status=1)[0]
    for command in (
        ("consume", "orders"),
        ("produce", "orders"),
        ("group", "reset", "readers", "--to-earliest"),
    ):
        assert run(*command, stdin=b"d\n", status=1)[1] == problem
    other = next(one["partition"] for one in partitions if one["leader"] != lost)
    run("produce", "orders", "--partition", str(other), stdin=b"e\n")
    group = json.loads(run("group", "describe", "readers", "-o", "json")[0])
    assert [one["lag"] for one in group["partitions"] if one["partition"] == 1] == [None]
    info = json.loads(run("cluster", "info", "-o", "json")[0])
    assert info["withoutLeader"] >= 1
    orders = [one for one in info["unhealthyPartitions"] if one["topic"] == "orders"]
    assert orders == [{"topic": "orders", "partition": 1, "leader": -1, "replicas": [lost], "isr": []}]
    assert f"orders 1 - {lost} none" in " ".join(run("cluster", "info")[0].split())
    assert lost not in [one["broker"] for one in info["brokers"]]
