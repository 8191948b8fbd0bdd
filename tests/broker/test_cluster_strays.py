"""Real brokers with a wrong tree, or without a directory: nothing is lost, and all is back with the right one."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_broker.coordination import OVERRIDE
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import PATIENT, Writer, holds
from millstream_harness.wire import Wire
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process


def test_a_wrong_address_of_zookeeper_costs_nothing(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """The brokers refuse to start. Forced to, with a new topic of the same name, they keep the old logs as strays."""
    with ClusterProcesses(tmp_path, zookeeper=shared_zookeeper) as cluster:
        brokers = cluster.brokers.values()
        with Wire(cluster.brokers[1].bootstrap) as wire:
            wire.create("t")
        cluster.await_in_sync("t")
        writer = Writer(cluster, "t")
        writer.write(300)
        for one in brokers:
            one.stop(20)
        wrong = f"{cluster.connect}-wrong"
        for one in brokers:
            one.config["zookeeper.connect"] = wrong
            with pytest.raises(
                RuntimeError, match=f"(?s)has no cluster, but log.*Check zookeeper.connect={wrong}"
            ):
                one.start()
        for one in brokers:
            one.config[OVERRIDE] = "true"
            one.start()
        with Wire(cluster.brokers[1].bootstrap) as wire:
            wire.create("t")
        cluster.await_in_sync("t")
        for one in brokers:
            until(lambda one=one: list(one.data.glob("t-0.*-stray")), "its log is a stray")  # type: ignore[misc]
            one.stop(20)
            one.config |= {"zookeeper.connect": cluster.connect, OVERRIDE: "false"}
        for one in brokers:
            one.start()
        cluster.await_in_sync("t")
        holds(cluster, writer)
        writer.write(100)
        holds(cluster, writer)


@pytest.mark.parametrize("what", ["directory", "folders"])
def test_a_broker_without_one_of_its_directories_leads_nothing_that_was_there(
    shared_zookeeper: ZooKeeperProcess, tmp_path: Path, what: str
) -> None:
    """All are killed. The broker that lacks logs starts first, and would lead with empty ones."""
    with ClusterProcesses(tmp_path, zookeeper=shared_zookeeper) as cluster:
        first = cluster.brokers[1]
        first.stop(20)
        dirs = [first.data, first.folder / "more"]
        first.config["log.dirs"] = ",".join(map(str, dirs))
        first.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
        for name in ("a", "b"):
            admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2, 3]])])[name].result(30)
            cluster.await_in_sync(name)
        writers = [Writer(cluster, name) for name in ("a", "b")]
        for writer in writers:
            writer.write(200)
        for one in cluster.brokers.values():
            one.pause()
        for one in cluster.brokers.values():
            one.kill()
        away = tmp_path / "away"
        if what == "directory":
            dirs[1].rename(away)
            first.config["log.dirs"] = str(dirs[0])
        else:
            away.mkdir()
            for path in dirs[1].glob("[ab]-0"):
                path.rename(away / path.name)
        first.start()
        assert "is missing: it was in" in first.said()
        for number in (2, 3):
            cluster.brokers[number].start()
        for writer in writers:
            cluster.await_in_sync(writer.topic)
            writer.write(50)
            holds(cluster, writer)
        first.stop(20)
        if what == "directory":
            away.rename(dirs[1])
            first.config["log.dirs"] = ",".join(map(str, dirs))
        first.start()
        for writer in writers:
            cluster.await_in_sync(writer.topic)
            writer.write(50)
            holds(cluster, writer)
