"""Real brokers with a wrong tree: no log is deleted, and everything is back with the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_broker.coordination import OVERRIDE
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.cluster_load import Writer, holds
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
