"""`millstream` and Kafka's own tools on one cluster: each shows the other's changes, and they agree.

With ``COMPAT_PEER=kafka`` that cluster is Apache Kafka.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from millstream_harness.command import millstream
from millstream_harness.java import run_kafka_tool
from millstream_harness.scenario import unique

pytestmark = pytest.mark.soak

Tool = Callable[..., str]


@pytest.fixture
def tool(bootstrap: str) -> Tool:
    return lambda name, *args: run_kafka_tool(name, "--bootstrap-server", bootstrap, *args).stdout


@pytest.fixture
def ours(bootstrap: str) -> Callable[..., Any]:
    """``ours("topic", "list")``: the JSON output of `millstream`."""

    def call(*arguments: str, stdin: bytes = b"") -> Any:
        ended = millstream(*arguments, "-o", "json", stdin=stdin, bootstrap=bootstrap)
        assert ended.returncode == 0, ended.stderr.decode()
        return json.loads(ended.stdout)

    return call


@pytest.fixture
def topic(ours: Callable[..., Any]) -> str:
    """Three partitions, and ten records in the first."""
    name = unique("both")
    ours("topic", "create", name, "-p", "3", "-r", "1", "-c", "retention.ms=86400000")
    ours("produce", name, "--partition", "0", stdin=b"line\n" * 10)
    return name


def test_topics(ours: Callable[..., Any], tool: Tool, topic: str) -> None:
    described, theirs = ours("topic", "describe", topic), tool("topics", "--describe", "--topic", topic)
    assert f"TopicId: {described['topicId']}" in theirs
    assert "PartitionCount: 3" in theirs
    assert "retention.ms=86400000" in theirs
    rows = re.findall(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\S+)\s+Isr: (\S+)", theirs)
    shown = [
        tuple(str(one) for one in (p["partition"], p["leader"], *p["replicas"], *p["isr"]))
        for p in described["partitions"]
    ]
    assert rows == shown
    offsets = dict(line.rsplit(":", 1) for line in tool("get-offsets", "--topic", topic).split())
    assert offsets == {f"{topic}:{p['partition']}": str(p["latest"]) for p in described["partitions"]}
    assert {one["name"] for one in ours("topic", "list", "--internal")} == set(
        tool("topics", "--list").split()
    )

    ours("topic", "alter", topic, "-p", "5", "-c", "segment.ms=60000", "-d", "retention.ms", "--yes")
    theirs = tool("topics", "--describe", "--topic", topic)
    assert "PartitionCount: 5" in theirs
    assert "segment.ms=60000" in theirs
    assert "retention.ms" not in theirs
    tool("topics", "--alter", "--topic", topic, "--partitions", "6")
    assert len(ours("topic", "describe", topic)["partitions"]) == 6
    ours("topic", "delete", topic, "--yes")
    assert topic not in tool("topics", "--list").split()


def test_configuration(ours: Callable[..., Any], tool: Tool, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    ours(
        "config", "set", f"topic/{topic}", "cleanup.policy=compact,delete", "max.message.bytes=20000", "--yes"
    )
    theirs = tool("configs", "--describe", *entity)
    for one in ours("config", "get", f"topic/{topic}"):
        assert f"{one['key']}={one['value']}" in theirs
    everything = tool("configs", "--describe", "--all", *entity)
    for one in ours("config", "get", f"topic/{topic}", "--all"):
        assert f"  {one['key']}={one['value']} " in everything
    tool("configs", "--alter", *entity, "--add-config", "retention.ms=77")
    (found,) = ours("config", "get", f"topic/{topic}", "retention.ms")
    assert found["value"] == "77"
    ours("config", "reset", f"topic/{topic}", "retention.ms")
    assert "retention.ms=77" not in tool("configs", "--describe", *entity)


def test_groups(ours: Callable[..., Any], tool: Tool, topic: str, bootstrap: str) -> None:
    group = unique("both-group")
    millstream("consume", topic, "--group", group, bootstrap=bootstrap)

    def theirs() -> dict[int, list[str]]:
        """Committed offset, end and lag by partition, from Kafka's tool."""
        lines = tool("consumer-groups", "--describe", "--group", group).splitlines()
        rows = [line.split() for line in lines if line.startswith(group)]
        return {int(row[2]): row[3:6] for row in rows}

    def described() -> dict[int, list[str]]:
        found = ours("group", "describe", group)["partitions"]
        return {p["partition"]: [str(p["committed"]), str(p["latest"]), str(p["lag"])] for p in found}

    assert theirs() == described()
    for target in (["--to-offset", "4"], ["--shift-by", "2"], ["--to-earliest"], ["--to-latest"]):
        reset = ("consumer-groups", "--reset-offsets", "--group", group, "--topic", topic)
        # Kafka 3.9 prints all rows in one line.
        rows = re.findall(rf"{group}\s+{topic}\s+(\d+)\s+(\d+)", tool(*reset, *target, "--dry-run"))
        plan = {int(partition): int(offset) for partition, offset in rows}
        moves = ours("group", "reset", group, *target, "--topic", topic, "--yes")["partitions"]
        assert {move["partition"]: move["offset"] for move in moves} == plan
        assert theirs() == described()
    assert {one["group"] for one in ours("group", "list")} == set(tool("consumer-groups", "--list").split())
    ours("group", "delete", group, "--yes")
    assert group not in tool("consumer-groups", "--list").split()


def test_the_cluster_id(ours: Callable[..., Any], bootstrap: str) -> None:
    theirs = run_kafka_tool("cluster", "cluster-id", "--bootstrap-server", bootstrap).stdout
    assert f"Cluster ID: {ours('cluster', 'info')['clusterId']}" in theirs.splitlines()
