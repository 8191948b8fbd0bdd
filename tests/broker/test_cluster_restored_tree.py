"""Real brokers whose ZooKeeper is restored from an older copy: their logs decide, and no record is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from millstream_harness.broker import BrokerProcess
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, Writer, holds
from millstream_harness.restored_zookeeper import copy, restore
from millstream_harness.wire import Wire
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol.alter_partition_reassignments import (
    API,
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream_kafka.protocol.errors import ErrorCode

pytestmark = pytest.mark.process


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    server = ZooKeeperProcess(tmp_path / "zookeeper").start()
    yield server
    server.kill()


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, zookeeper=zookeeper) as cluster:
        yield cluster


@contextlib.contextmanager
def written(zookeeper: ZooKeeperProcess) -> Iterator[Callable[[], object]]:
    """A function that changes the tree: ZooKeeper refuses sessions that have seen more changes than it has."""
    tree = KazooClient(zookeeper.connect)
    tree.start(60)
    try:
        tree.ensure_path("/changed")
        yield lambda: tree.set("/changed", b"")
    finally:
        tree.stop()
        tree.close()


def create(cluster: ClusterProcesses, name: str, *replicas: int, **config: str) -> Writer:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(name, 1, replica_assignment=[list(replicas)], config=settings)
    admin.create_topics([new])[name].result(30)
    cluster.await_in_sync(name, len(replicas))
    return Writer(cluster, name)


def move(cluster: ClusterProcesses, name: str, *replicas: int) -> None:
    asked = ReassignableTopic(name, [ReassignablePartition(0, list(replicas))])

    def is_taken() -> bool:
        """The controller may change while ZooKeeper restarts."""
        with Wire(cluster.brokers[cluster.controller()].bootstrap) as wire:
            answer = wire.call(API, 0, AlterPartitionReassignmentsRequest(20_000, topics=[asked]))
        assert answer.error_code in (0, ErrorCode.NOT_CONTROLLER)
        return answer.error_code == 0

    until(is_taken, "the controller takes the reassignment")
    until(lambda: cluster.partitions(name)[0].replica_nodes == list(replicas), f"{name} is moved")
    for number, one in cluster.brokers.items():
        if number not in replicas:
            until(lambda one=one: not (one.data / f"{name}-0").exists(), "the old log is deleted")  # type: ignore[misc]


def new_sessions(broker: BrokerProcess) -> int:
    """Number of sessions with ZooKeeper that it has begun."""
    return broker.said().count("in a new session")


def stop_all(cluster: ClusterProcesses) -> None:
    for one in cluster.brokers.values():
        if one.process is not None:
            one.stop(20)


def test_a_restored_zookeeper_costs_no_record(cluster: ClusterProcesses, zookeeper: ZooKeeperProcess) -> None:
    """In the copy all are in sync and `moved` is at broker 1. Since then broker 3 was out, and `moved` went to 2."""
    kept = create(cluster, "kept", 3, 1, 2)
    moved = create(cluster, "moved", 1, min_insync_replicas="1")
    gone = create(cluster, "gone", 1, 2, 3)
    for writer in (kept, moved, gone):
        writer.write(100)
    copied = copy(zookeeper)
    for name in ("kept", "gone"):
        cluster.await_in_sync(name)
    move(cluster, "moved", 2)
    later = create(cluster, "later", 1, 2, 3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
    admin.delete_topics(["gone"])["gone"].result(30)
    cluster.brokers[3].stop(20)
    cluster.await_in_sync("kept", 2)
    for writer in (kept, moved, later):
        writer.write(100)
    stop_all(cluster)
    restore(zookeeper, copied)
    third = cluster.brokers[3]
    third.start()
    until(lambda: cluster.partitions("kept", third)[0].leader_id == -1, "it knows that nobody leads")
    assert "coordination was restored from an older copy" in third.said()
    for number in (1, 2):
        cluster.brokers[number].start()
    cluster.await_in_sync("kept")
    assert cluster.leader("moved") is cluster.brokers[2]
    cluster.await_in_sync("moved", 2)
    for writer in (kept, moved):
        holds(cluster, writer)
        writer.write(50)
        holds(cluster, writer)
    for one in cluster.brokers.values():
        until(lambda one=one: list(one.data.glob("later-0.*-stray")), "what the copy lacks is a stray")  # type: ignore[misc]
    cluster.await_in_sync("gone")
    stop_all(cluster)
    for one in cluster.brokers.values():
        one.start()
    cluster.await_in_sync("kept")
    assert all(
        one.said().count("coordination was restored from an older copy") == 1
        for one in cluster.brokers.values()
    )
    holds(cluster, kept)


def test_a_zookeeper_restored_while_brokers_run_costs_no_record(
    cluster: ClusterProcesses, zookeeper: ZooKeeperProcess
) -> None:
    """Brokers that see it end, and compare their logs once they are started again. One that comes later joins them,
    because the others have compared theirs."""
    kept = create(cluster, "kept", 3, 1, 2)
    kept.write(100)
    copied = copy(zookeeper)
    cluster.await_in_sync("kept")
    cluster.brokers[3].stop(20)
    cluster.await_in_sync("kept", 2)
    kept.write(100)
    # A copy restarts ZooKeeper: on a busy machine that alone ends sessions.
    sessions = {number: new_sessions(one) for number, one in cluster.brokers.items()}
    restore(zookeeper, copied)
    cluster.brokers[3].start()
    with written(zookeeper) as write:
        for number in (1, 2):
            one = cluster.brokers[number]

            def ends(one: BrokerProcess = one) -> bool:
                return "was restored from an older copy: " in one.said()

            def has_seen_it(number: int = number, one: BrokerProcess = one) -> bool:
                write()
                return ends(one) or new_sessions(one) > sessions[number]

            until(has_seen_it, f"broker {number} ends or joins")
            if ends():
                assert one.wait(60) == 1
                one.start()
    cluster.await_in_sync("kept")
    holds(cluster, kept)
    kept.write(50)
    holds(cluster, kept)
