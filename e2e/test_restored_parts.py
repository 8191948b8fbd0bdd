"""docs/how-to/backup-kubernetes.md, "One part alone", as a reader would.

The tests of this module are one story and run in their order: each continues in the folder, and with the Cluster, of
the one before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_harness.kube import Namespace, kubeconfig
from millstream_harness.kubernetes_pages import (
    DISK_RESTORED,
    DISKS_RESTORED,
    STATUS_RESTORED,
    TABLE_RESTORED,
    TREE_RESTORED,
)

LOAD = "batchload.millstream.dev"


@pytest.fixture(scope="module")
def folder(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    kubeconfig(folder / "kubeconfig", here=namespace.name)
    return folder


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(folder / "kubeconfig")}


def test_the_disk_of_a_broker(folder: Path, environment: dict[str, str]) -> None:
    DISK_RESTORED.run(folder, env=environment)


def test_zookeeper(folder: Path, environment: dict[str, str]) -> None:
    TREE_RESTORED.run(folder, env=environment)


def test_the_disks_of_all_brokers(folder: Path, environment: dict[str, str]) -> None:
    DISKS_RESTORED.run(folder, env=environment)


def test_the_table_of_a_load(folder: Path, environment: dict[str, str], namespace: Namespace) -> None:
    TABLE_RESTORED.run(folder, env=environment)
    committed = namespace.get(LOAD, "clicks")["status"]["committed"]["offsets"]
    assert [partition["offset"] for partition in committed] == [17]


def test_the_status_of_a_load(folder: Path, environment: dict[str, str], namespace: Namespace) -> None:
    STATUS_RESTORED.run(folder, env=environment)
    assert not namespace.kubectl("get", LOAD, "--ignore-not-found")
