"""A Cluster whose brokers have topics never starts with a ZooKeeper that does not know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream_harness.manifests import cluster
from millstream_operator.local.clusters import LocalCluster
from millstream_operator.local.folder import DataFolder
from millstream_operator.local.state import State
from millstream_operator.models import Cluster, decode_as

STRAY = "orders-0.00000000000000000000000000000001-stray"


def local(data: Path, **spec: Any) -> LocalCluster:
    return LocalCluster(DataFolder(data, State()), decode_as(Cluster, cluster("west", **spec)))


def refusal(data: Path, **spec: Any) -> str:
    found = local(data, **spec).refusal()
    return "" if found is None else found.message


def folder(data: Path, *names: str) -> Path:
    """The folder of a Cluster with these files and folders; those with an extension are files."""
    west = data / "clusters" / "west"
    for name in names:
        path = west / name
        if path.suffix and not path.name.endswith("-stray"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.mkdir(parents=True)
    return west


OWN = {"zookeeper": {"replicas": 1}}
OTHERS = {"zookeeper": {"connect": "zk:2181"}}


@pytest.mark.parametrize("partition", ["0/orders-0", f"0/{STRAY}"])
def test_zookeepers_data_must_be_there(tmp_path: Path, partition: str) -> None:
    west = folder(tmp_path, partition, "0/meta.properties", "zookeeper")
    assert refusal(tmp_path, **OWN) == (
        f"{west}/zookeeper has no data, and {west}/0 has topics, which a new ZooKeeper does not know: restore"
        f" {west}/zookeeper, or remove {west} to start without records"
    )
    folder(tmp_path, "zookeeper/version-2/log.1")
    assert refusal(tmp_path, **OWN) == ""


@pytest.mark.parametrize("spec", [OWN, OTHERS])
def test_a_single_broker_gets_no_zookeeper(tmp_path: Path, spec: dict[str, Any]) -> None:
    folder(tmp_path, "0/orders-0", "0/coordination.journal", "zookeeper/version-2/log.1")
    assert "has the topics of a Cluster without ZooKeeper, which would be lost" in refusal(tmp_path, **spec)
    assert refusal(tmp_path) == ""


def test_a_broker_of_a_cluster_does_not_start_by_itself(tmp_path: Path) -> None:
    folder(tmp_path, "0/orders-0", "zookeeper/version-2/log.1")
    assert "and no coordination.journal: put spec.zookeeper back" in refusal(tmp_path)


@pytest.mark.parametrize("spec", [{}, OWN, OTHERS])
def test_brokers_without_topics_may_start_with_anything(tmp_path: Path, spec: dict[str, Any]) -> None:
    assert refusal(tmp_path, **spec) == ""
    folder(tmp_path, "0/meta.properties")
    assert refusal(tmp_path, **spec) == ""


@pytest.mark.parametrize("journal", ["0/coordination.journal", ""])
def test_spec_whose_zookeeper_does_not_fit_the_data_has_never_run(tmp_path: Path, journal: str) -> None:
    """So it may be corrected, although zookeeper cannot be added to a Cluster or removed from it."""
    names = ["0/orders-0", "0/meta.properties", *([journal] if journal else ["zookeeper/version-2/log.1"])]
    assert not local(tmp_path).has_run()
    folder(tmp_path, *names)
    assert [local(tmp_path, **spec).has_run() for spec in ({}, OWN)] == [bool(journal), not journal]
