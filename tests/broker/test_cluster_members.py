"""Brokers that join, leave or must not start, and a ZooKeeper that is down for a while."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from millstream_harness.broker import BrokerProcess, fixed_port
from millstream_harness.cluster import SESSION_MS, STABLE, ClusterProcesses, until
from millstream_harness.cluster_load import Writer, create, holds
from millstream_harness.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess

pytestmark = pytest.mark.soak


def test_zookeeper_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Brokers keep serving their partitions; requests that need ZooKeeper fail or wait; afterwards all continues."""
    with ClusterProcesses(tmp_path, config={"offsets.topic.replication.factor": "3"}) as cluster:
        create(cluster, "t")
        cluster.await_in_sync("t")
        writer = Writer(cluster, "t")
        writer.write(500)
        cluster.zookeeper.kill()
        begun = time.monotonic()
        while time.monotonic() - begun < 2 * SESSION_MS / 1000:
            writer.write(100)
        cluster.zookeeper.start()
        create(cluster, "after")
        writer.write(500)
        cluster.await_in_sync("t")
        cluster.await_in_sync("after")
        holds(cluster, writer)
        cluster.zookeeper.kill()
        for one in cluster.brokers.values():
            assert one.stop() == 0


def test_one_zookeeper_of_three_dies(tmp_path: Path) -> None:
    with (
        ZooKeeperEnsemble(tmp_path / "ensemble") as ensemble,
        ClusterProcesses(tmp_path, zookeeper=ensemble, config=STABLE) as cluster,
    ):
        create(cluster, "t")
        writer = Writer(cluster, "t")
        writer.write(500)
        ensemble.leader().kill()
        writer.write(500)
        create(cluster, "after")
        cluster.await_in_sync("after")
        holds(cluster, writer)


def test_brokers_join_and_leave_at_run_time(shared_zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    config = {**STABLE, "default.replication.factor": "2", "min.insync.replicas": "1"}
    with ClusterProcesses(tmp_path, 2, config, zookeeper=shared_zookeeper) as cluster:
        with pytest.raises(KafkaException, match="only 2 broker"):
            create(cluster, "t")
        third = cluster.broker(3)
        cluster.brokers[3] = third
        third.start()
        until(lambda: len(cluster.metadata().brokers) == 3, "three brokers are known")
        create(cluster, "t")
        cluster.await_in_sync("t")
        third.stop()
        until(lambda: len(cluster.metadata().brokers) == 2, "two brokers are known")
        cluster.await_in_sync("t", 2)


# What must not start, and what must wait


def test_the_second_broker_with_an_id_does_not_start(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with ClusterProcesses(tmp_path, 1, STABLE, zookeeper=shared_zookeeper) as cluster:
        session = {
            "zookeeper.session.timeout.ms": "6000"
        }  # it waits half as long again for the holder to end
        other = BrokerProcess(tmp_path / "other", {"broker.id": "1", **cluster.config, **session})
        try:
            with pytest.raises(
                RuntimeError, match=r"status 1:(.|\n)*broker.id=1 is taken: the broker at PLAINTEXT://127"
            ):
                other.start()
        finally:
            other.kill()
        create(cluster, "t", 1, 1)


def test_a_broker_with_another_clusters_data_does_not_start(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with ClusterProcesses(tmp_path / "one", 1, zookeeper=shared_zookeeper) as one:
        one.brokers[1].stop()
        with ClusterProcesses(tmp_path / "two", 2, zookeeper=shared_zookeeper) as two:
            astray = BrokerProcess(one.brokers[1].folder, {**one.brokers[1].config, **two.config})
            with pytest.raises(
                RuntimeError,
                match=r"status 1:(.|\n)*has the tree of cluster \S+, but log\.dirs: \S+ belong to",
            ):
                astray.start()
            astray.kill()


def test_a_broker_waits_for_zookeeper_and_says_so(tmp_path: Path) -> None:
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper")
    http = fixed_port()
    broker = BrokerProcess(
        tmp_path / "broker",
        {"zookeeper.connect": f"{zookeeper.connect}/kafka", "http.listener": f"127.0.0.1:{http}"},
    )
    try:
        broker.launch(broker.command)
        until(lambda: f"waiting for ZooKeeper at {zookeeper.connect}/kafka" in broker.said(), "it says so")
        assert _status(http, "/healthz") == 200
        assert _status(http, "/readyz") == 503
        assert broker.stop() == 0
        broker.launch(broker.command)
        until(lambda: _status(http, "/readyz") == 503, "it is starting")
        zookeeper.start()
        broker.await_ready(broker.is_ready)
        assert _status(http, "/readyz") == 200
    finally:
        broker.kill()
        zookeeper.kill()


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0
