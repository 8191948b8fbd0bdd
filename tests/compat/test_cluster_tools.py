"""Kafka's own tools, and ZooKeeper's, on a cluster of three brokers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.command import millstream
from millstream_harness.java import SHORT_LIVED, run, run_kafka_tool
from millstream_harness.zookeeper import ZooKeeperProcess, zookeeper_command

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def cluster(
    shared_zookeeper: ZooKeeperProcess, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("tools"), zookeeper=shared_zookeeper) as cluster:
        yield cluster


def tool(cluster: ClusterProcesses, name: str, *args: str, check: bool = True) -> str:
    """The tool's output; with errors, too, if it may fail."""
    done = run_kafka_tool(name, "--bootstrap-server", cluster.bootstrap, *args, check=check)
    return done.stdout if check else done.stdout + done.stderr


def zk(cluster: ClusterProcesses, *commands: tuple[str, str]) -> tuple[list[set[str]], list[dict[str, Any]]]:
    """The output of zkCli.sh: the names of each `ls`, and the JSON of each `get`. Paths are from the cluster's root."""
    server, _, root = cluster.connect.partition("/")
    typed = "".join(f"{verb} {f'/{root}{path}'.rstrip('/')}\n" for verb, path in commands)
    main = zookeeper_command(
        "org.apache.zookeeper.ZooKeeperMain", "-server", server, options=SHORT_LIVED, log="tools"
    )
    said = run(main, stdin=typed + "quit\n").stdout
    listed = [set(names.split(", ")) for names in re.findall(r"^\[(?!zk:)(.*)\]$", said, re.MULTILINE)]
    return listed, [json.loads(line) for line in re.findall(r"^{.*}$", said, re.MULTILINE)]


def test_zookeepers_shell_shows_the_classic_tree(cluster: ClusterProcesses) -> None:
    tool(cluster, "topics", "--create", "--topic", "seen", "--partitions", "2", "--replication-factor", "3")
    tool(
        cluster, "configs", "--alter", "--entity-type", "topics", "--entity-name", "seen",
        "--add-config", "retention.ms=1000",
    )  # fmt: skip
    (root, brokers), (topic, state, config, controller, broker) = zk(
        cluster,
        ("ls", "/"),
        ("ls", "/brokers/ids"),
        ("get", "/brokers/topics/seen"),
        ("get", "/brokers/topics/seen/partitions/0/state"),
        ("get", "/config/topics/seen"),
        ("get", "/controller"),
        ("get", "/brokers/ids/1"),
    )
    assert {"brokers", "cluster", "config", "admin", "controller", "controller_epoch", "consumers"} <= root
    assert brokers == {"1", "2", "3"}
    assert topic["version"] == 3
    assert {index: len(replicas) for index, replicas in topic["partitions"].items()} == {"0": 3, "1": 3}
    assert set(state) == {"controller_epoch", "leader", "version", "leader_epoch", "isr"}
    assert config == {"version": 1, "config": {"retention.ms": "1000"}}
    assert controller["brokerid"] in (1, 2, 3)
    assert broker["endpoints"] == [f"PLAINTEXT://{cluster.brokers[1].bootstrap}"]


def test_under_replicated_partitions_and_preferred_leaders(cluster: ClusterProcesses) -> None:
    tool(cluster, "topics", "--create", "--topic", "led", "--partitions", "3", "--replication-factor", "3")
    cluster.await_in_sync("led")
    assert tool(cluster, "topics", "--describe", "--under-replicated-partitions", "--topic", "led") == ""
    preferred = {one.partition_index: one.replica_nodes[0] for one in cluster.partitions("led")}
    cluster.brokers[2].stop(60)
    cluster.await_in_sync("led", 2)
    under = tool(cluster, "topics", "--describe", "--under-replicated-partitions", "--topic", "led")
    assert under.count("Partition:") == 3
    info = json.loads(millstream("cluster", "info", "-o", "json", bootstrap=cluster.bootstrap).stdout)
    ours = [one for one in info["unhealthyPartitions"] if one["topic"] == "led"]
    assert [one["partition"] for one in ours] == [0, 1, 2], "as Kafka's tool says"
    assert all(2 in one["replicas"] and 2 not in one["isr"] for one in ours)
    assert all(one.leader_id != 2 for one in cluster.partitions("led"))
    cluster.brokers[2].start()
    cluster.await_in_sync("led")
    moved = tool(cluster, "leader-election", "--election-type", "preferred", "--all-topic-partitions")
    assert "Successfully completed leader election (PREFERRED) for partitions" in moved
    assert "led-" in moved
    until(
        lambda: {one.partition_index: one.leader_id for one in cluster.partitions("led")} == preferred,
        "the preferred leaders lead",
    )


def test_nobody_without_the_data_leads_unless_kafka_leader_election_says_so(
    cluster: ClusterProcesses,
) -> None:
    tool(
        cluster, "topics", "--create", "--topic", "unclean", "--replica-assignment", "3:2",
        "--config", "min.insync.replicas=1",
    )  # fmt: skip
    cluster.await_in_sync("unclean", 2)

    def leader_and_isr() -> tuple[int, list[int]]:
        (partition,) = cluster.partitions("unclean")
        return partition.leader_id, partition.isr_nodes

    cluster.brokers[2].stop(60)
    until(lambda: leader_and_isr() == (3, [3]), "broker 3 is alone")
    cluster.brokers[3].kill()
    until(lambda: leader_and_isr()[0] == -1, "nobody leads")
    cluster.brokers[2].start()
    elect = ("leader-election", "--topic", "unclean", "--partition", "0", "--election-type")
    refused = tool(cluster, *elect, "preferred", check=False)
    assert "PreferredLeaderNotAvailableException" in refused
    assert leader_and_isr() == (-1, []), "broker 2 does not have everything"
    assert "Successfully completed leader election (UNCLEAN)" in tool(cluster, *elect, "unclean")
    until(lambda: leader_and_isr() == (2, [2]), "broker 2 leads all the same")
    cluster.brokers[3].start()
    cluster.await_in_sync("unclean", 2)


def test_partitions_are_reassigned(cluster: ClusterProcesses, tmp_path: Path) -> None:
    tool(cluster, "topics", "--create", "--topic", "moved", "--replica-assignment", "1:2")
    run_kafka_tool(
        "verifiable-producer",
        "--bootstrap-server",
        cluster.bootstrap,
        "--topic",
        "moved",
        "--max-messages",
        "2000",
    )
    plan = tmp_path / "plan.json"
    wanted = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 2]}]}
    plan.write_text(json.dumps(wanted))
    started = tool(cluster, "reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    assert "Successfully started partition reassignment for moved-0" in started

    def verify() -> str:
        return tool(cluster, "reassign-partitions", "--reassignment-json-file", str(plan), "--verify")

    until(
        lambda: "Reassignment of partition moved-0 is completed" in verify(), "the partition has moved", 120
    )
    (partition,) = cluster.partitions("moved")
    assert partition.replica_nodes == [3, 2]
    assert "No partition reassignments found" in tool(cluster, "reassign-partitions", "--list")
    until(lambda: not (cluster.brokers[1].data / "moved-0").exists(), "broker 1 has no log of it any more")
    offsets = tool(cluster, "get-offsets", "--topic", "moved")
    assert "moved:0:2000" in offsets.splitlines()


def test_a_throttled_reassignment_is_cancelled_and_done_again(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    tool(cluster, "topics", "--create", "--topic", "slow", "--replica-assignment", "1:2")
    amount = ("--num-records", "300", "--record-size", "10000", "--throughput", "-1")
    to = ("--producer-props", f"bootstrap.servers={cluster.bootstrap}", "batch.size=16384")
    run_kafka_tool("producer-perf-test", "--topic", "slow", *amount, *to)
    plan = tmp_path / "plan.json"
    wanted = {"version": 1, "partitions": [{"topic": "slow", "partition": 0, "replicas": [3, 2]}]}
    plan.write_text(json.dumps(wanted))

    def reassign(*args: str) -> str:
        return tool(cluster, "reassign-partitions", "--reassignment-json-file", str(plan), *args)

    # Three megabytes at 10 kB a second stay in progress for as long as the test needs.
    assert "The inter-broker throttle limit was set to 10000 B/s" in reassign(
        "--execute", "--throttle", "10000"
    )
    assert re.search(
        r"slow-0: replicas: 3,2,1. adding: 3. removing: 1", tool(cluster, "reassign-partitions", "--list")
    )
    assert "Successfully cancelled partition reassignment for: slow-0" in reassign("--cancel")
    until(lambda: sorted(cluster.partitions("slow")[0].replica_nodes) == [1, 2], "the move is undone")
    until(lambda: not (cluster.brokers[3].data / "slow-0").exists(), "broker 3 has no log of it any more")

    begun = time.monotonic()
    reassign("--execute", "--throttle", "1000000")
    until(lambda: sorted(cluster.partitions("slow")[0].isr_nodes) == [2, 3], "the partition has moved", 120)
    assert time.monotonic() - begun > 1.5, "three megabytes at one a second, of which the first comes at once"
    said = reassign("--verify")
    assert "Reassignment of partition slow-0 is completed" in said
    assert "Clearing broker-level throttles" in said
    assert "slow:0:300" in tool(cluster, "get-offsets", "--topic", "slow").splitlines()


def test_partitions_are_added_and_topics_deleted(cluster: ClusterProcesses) -> None:
    tool(cluster, "topics", "--create", "--topic", "grown", "--partitions", "1", "--replication-factor", "2")
    tool(cluster, "topics", "--alter", "--topic", "grown", "--partitions", "4")
    until(lambda: len(cluster.partitions("grown")) == 4, "there are four partitions")
    tool(cluster, "topics", "--delete", "--topic", "grown")
    assert "grown" not in tool(cluster, "topics", "--list").split()


def test_brokers_are_configured_while_they_run(cluster: ClusterProcesses) -> None:
    alter = ("configs", "--alter", "--entity-type", "brokers")
    tool(cluster, *alter, "--entity-default", "--add-config", "log.retention.ms=7000")
    tool(cluster, *alter, "--entity-name", "3", "--add-config", "log.retention.ms=9000")
    _, (everywhere,) = zk(cluster, ("get", "/config/brokers/<default>"))
    assert everywhere["config"] == {"log.retention.ms": "7000"}
    for number, value in ((3, "9000"), (1, "7000")):
        described = (
            "configs",
            "--describe",
            "--entity-type",
            "brokers",
            "--entity-name",
            str(number),
            "--all",
        )
        until(
            lambda described=described, value=value: (
                f"log.retention.ms={value} " in tool(cluster, *described)
            ),  # type: ignore[misc]
            f"broker {number} goes by it",
            120,
        )
