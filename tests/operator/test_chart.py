"""The chart, rendered: bad values are refused, rights are least, the operator takes what comes out."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_harness.chart import VERSION
from millstream_harness.kube import CommandFailed, run
from millstream_harness.tools import require
from millstream_operator.models import Cluster, decode

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/millstream"


def render(*settings: str) -> list[dict[str, Any]]:
    helm = require("helm")
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    text = run(helm, "template", "millstream", str(CHART), "-n", "ms", "--kube-version", "1.34", *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    return next(d for d in documents if d["kind"] == kind and name in (None, d["metadata"]["name"]))


def test_the_default_cluster_is_one_that_the_operator_takes() -> None:
    rendered = of_kind(render("cluster.config.log\\.cleanup\\.policy=compact"), "Cluster")
    cluster = decode(rendered)
    assert isinstance(cluster, Cluster)
    assert cluster.spec.config == {"log.cleanup.policy": "compact"}
    assert cluster.spec.brokers.storage.deletion_policy == "Retain"
    assert [d for d in render("cluster.enabled=false") if d["kind"] in ("Cluster", "Pod")] == []


def test_a_default_cluster_of_three() -> None:
    cluster = decode(of_kind(render("cluster.replicas=3", "cluster.zookeeper.replicas=3"), "Cluster"))
    assert isinstance(cluster, Cluster)
    assert cluster.spec.brokers.replicas == 3
    assert cluster.spec.zookeeper is not None
    assert cluster.spec.zookeeper.replicas == 3


def test_looking_at_nodes_is_a_right_that_can_be_kept() -> None:
    def may_read_nodes(*settings: str) -> bool:
        role = of_kind(render(*settings), "ClusterRole", "millstream-operator-storage")
        return any("nodes" in rule["resources"] for rule in role["rules"])

    assert may_read_nodes()
    assert not may_read_nodes("operator.readNodes=false")


def test_versions_are_in_step() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    operator = of_kind(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert operator["image"] == f"millstream/operator:{VERSION}"
    assert f"--broker-image=millstream/broker:{VERSION}" in operator["args"]
    assert "--zookeeper-image=zookeeper:3.9" in operator["args"]


def test_images_that_batch_loads_may_name() -> None:
    documents = render("operator.sparkImages={registry.example/spark/*,other:1}")
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [one for one in args if "allowed-spark" in one] == [
        "--allowed-spark-image=registry.example/spark/*",
        "--allowed-spark-image=other:1",
    ]


def test_pods_are_not_root_and_one_operator_at_a_time() -> None:
    for document in render():
        if document["kind"] not in ("Deployment", "Job", "Pod"):
            continue
        pod = document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert of_kind(render(), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_rights_are_least() -> None:
    rules = of_kind(render(), "ClusterRole", "millstream-operator")["rules"]
    granted: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in rules:
        for group in rule["apiGroups"]:
            for kind in rule["resources"]:
                granted[group, kind].update(rule["verbs"])
    assert not any("*" in (*key, *verbs) for key, verbs in granted.items())
    assert ("", "secrets") not in granted
    assert "delete" not in granted["", "persistentvolumeclaims"] | granted["apps", "statefulsets"]
    (bind,) = [rule for rule in rules if "bind" in rule["verbs"]]
    assert bind["resourceNames"] == ["millstream-spark"]


def test_rights_end_with_the_watched_namespaces() -> None:
    documents = render("operator.watchNamespaces={ms,flights}")
    bindings = [
        d for d in documents if d["kind"] == "RoleBinding" and d["metadata"]["name"] == "millstream-operator"
    ]
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["ms", "flights"]
    everywhere = [d["metadata"]["name"] for d in documents if d["kind"] == "ClusterRoleBinding"]
    # what belongs to no namespace: storage classes, and definitions (of the upgrade hook)
    assert sorted(everywhere) == ["millstream-operator-crds", "millstream-operator-storage"]
    args = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-2:] == ["--namespace=ms", "--namespace=flights"]


def test_the_upgrade_hook_has_every_definition() -> None:
    data = of_kind(render(), "ConfigMap")["data"]
    assert data == {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("clusters.enabled=true", "additional properties 'clusters' not allowed"),
        ("cluster.replicas=3", "3 brokers need ZooKeeper: set cluster.zookeeper.replicas=3"),
        ("cluster.zookeeper.replicas=2", "value must be one of 1, 3"),
        ("images.pullPolicy=Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("cluster.storage.size=big", "does not match pattern"),
        ("cluster.name=Default", "does not match pattern"),
        ("operator.watchNamespaces={elsewhere}", "is not in operator.watchNamespaces"),
    ],
)
def test_bad_values(setting: str, words: str) -> None:
    with pytest.raises(CommandFailed, match=re.escape(words)):
        render(setting)
