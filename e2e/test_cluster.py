"""examples/cluster on a real Kubernetes: operations while a producer continues, and nothing is lost.

The page's blocks, and commands of its table, run as they stand. The tests of this module are one story and run in their
order. The producer and the checks run on this machine, through the NodePort listener, so they use every broker's
advertised address.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness.chart import ROOT
from millstream_harness.kube import CommandFailed, Json, Namespace, kubeconfig
from millstream_harness.kube import until as kube_until
from millstream_harness.kubernetes_pages import CLEAN_UP, THREE_BROKERS, VOLUMES
from millstream_harness.ledger import Load, check
from millstream_harness.pages import run_command
from millstream_harness.rolls import in_sync, ready, resource
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import AdminError

pytestmark = pytest.mark.core

PAGE = THREE_BROKERS.page
KIND, TOPIC_KIND = "cluster.millstream.dev", "topic.millstream.dev"
BROKERS = "millstream.dev/cluster=three,app.kubernetes.io/component=broker"
PARTITIONS = range(6)

until = functools.partial(kube_until, passing=(CommandFailed, AdminError))
"""Nodes may lead to a pod that has just left, for a moment."""


def topic(name: str, factor: int, partitions: int) -> Json:
    spec = {
        "clusterRef": {"name": "three"},
        "partitions": partitions,
        "replicationFactor": factor,
        "config": {"min.insync.replicas": "2"},
    }
    return resource("Topic", name, spec)


@pytest.fixture(scope="module")
def folder(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, after the page's first commands."""
    folder = tmp_path_factory.mktemp("cluster")
    kubeconfig(folder / "kubeconfig", here=namespace.name)
    environment = {"KUBECONFIG": str(folder / "kubeconfig")}
    THREE_BROKERS.run(folder, env=environment)
    return folder


@pytest.fixture(scope="module")
def bootstrap(namespace: Namespace, folder: Path) -> str:
    """The brokers' address for this machine."""
    found = namespace.wait_condition(KIND, "three", timeout=240)
    (listener,) = found["status"]["listeners"]
    return str(listener["bootstrap"])


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(bootstrap)
    until("nodes lead to the brokers, which takes them a moment", lambda: bool(admin.brokers()), timeout=60)
    yield admin
    admin.close()


@pytest.fixture(scope="module")
def loads() -> list[Load]:
    """All producers started so far, whose acknowledged records must exist to the end."""
    return []


@pytest.fixture
def load(bootstrap: str, loads: list[Load]) -> Iterator[Load]:
    """A producer that waits for all in-sync replicas, and continues during the test."""
    load = Load(bootstrap, "orders", partitions=PARTITIONS, name=f"load{len(loads)}", pause_s=0.02)
    loads.append(load)
    with load:
        load.until(100)
        yield load


def pods(namespace: Namespace) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in namespace.list("pod", "-l", BROKERS)}


def ids(namespace: Namespace) -> dict[str, str]:
    return {name: one["metadata"]["uid"] for name, one in pods(namespace).items()}


def settled(namespace: Namespace, *without: str) -> Callable[[], bool]:
    """A check that the Cluster is ready, in its present generation, without any of these conditions."""

    def check() -> bool:
        found = namespace.get(KIND, "three")
        conditions = {one["type"]: one for one in found["status"]["conditions"]}
        current = conditions["Ready"].get("observedGeneration") == found["metadata"]["generation"]
        return current and conditions["Ready"]["status"] == "True" and not conditions.keys() & set(without)

    return check


def test_three_brokers_form_a_cluster(namespace: Namespace, admin: KafkaAdmin) -> None:
    found = namespace.get(KIND, "three")
    assert found["status"]["brokers"] == {"desired": 3, "ready": 3}
    (listener,) = found["status"]["listeners"]
    assert len(set(listener["addresses"])) == 3
    assert listener["bootstrap"] not in listener["addresses"], "a Service in front of all"
    assert sorted(admin.brokers().racks) == [0, 1, 2]
    until(
        "the cluster's id",
        lambda: namespace.get(KIND, "three")["status"].get("clusterId") == admin.cluster_id(),
    )
    status = namespace.wait_condition(TOPIC_KIND, "orders")["status"]
    assert (status["partitions"], status["replicationFactor"]) == (len(PARTITIONS), 3)
    until("every replica in sync", lambda: in_sync(admin, 3, "orders"))


def test_more_replicas_than_brokers_is_said(namespace: Namespace) -> None:
    namespace.apply(topic("too-many", 4, 1))
    namespace.wait_condition(TOPIC_KIND, "too-many", status="False", reason="InvalidReplicationFactor")
    namespace.kubectl("delete", TOPIC_KIND, "too-many")


def test_a_changed_configuration_restarts_one_broker_after_the_other(
    namespace: Namespace, admin: KafkaAdmin, load: Load, folder: Path
) -> None:
    before = ids(namespace)
    controller = admin.brokers().controller
    change = '{"spec":{"config":{"log.retention.hours":"24"}}}'
    run_command(PAGE, folder, f"kubectl patch msc three --type merge -p '{change}'")
    fewest = 3
    order: list[str] = []

    def all_new() -> bool:
        nonlocal fewest
        now = pods(namespace)
        fewest = min(fewest, sum(map(ready, now.values())))
        new = [name for name, one in now.items() if one["metadata"]["uid"] != before[name]]
        order.extend(name for name in new if name not in order)
        return len(new) == len(now) == 3 and all(map(ready, now.values()))

    until("three new pods", all_new, timeout=240, every=0.3)
    assert fewest == 2, "one at a time"
    assert order[-1] == f"three-brokers-{controller}", "the controller is the last"
    until("the roll over", settled(namespace, "RollingUpdate"), timeout=60)
    events = namespace.list("event", "--field-selector=reason=ConfigurationChanged")
    assert sorted(one["message"] for one in events) == [f"restarting three-brokers-{n}" for n in range(3)]
    load.until(load.ledger.count + 100)
    until("every replica in sync", lambda: in_sync(admin, 3, "orders"))


def test_what_brokers_take_live_restarts_none(namespace: Namespace, admin: KafkaAdmin) -> None:
    before = ids(namespace)
    for config, there in (
        ({"log.retention.ms": "7200000"}, {"log.retention.ms": "7200000"}),
        ({"log.retention.ms": None}, {}),
    ):
        namespace.patch(KIND, "three", {"spec": {"config": config}})
        until("the brokers have it", lambda there=there: admin.brokers_config() == there, timeout=60)  # type: ignore[misc]
    namespace.patch(KIND, "three", {"spec": {"config": {"log.retention.ms": "soon"}}})
    namespace.wait_condition(KIND, "three", status="False", reason="InvalidConfig")
    namespace.patch(KIND, "three", {"spec": {"config": {"log.retention.ms": None}}})
    until("no complaint", settled(namespace), timeout=60)
    assert ids(namespace) == before


def test_another_replication_factor(namespace: Namespace, admin: KafkaAdmin, folder: Path) -> None:
    """Up from one, and down by the page's command and up again. Only the first is fewer than the minimum ISR."""
    namespace.apply(topic("small", 1, 2))
    namespace.wait_condition(TOPIC_KIND, "small")
    assert namespace.condition(TOPIC_KIND, "small", "Warning")["reason"] == "MinimumIsr"
    namespace.apply(topic("small", 3, 2))
    command = """kubectl patch mst orders --type merge -p '{"spec":{"replicationFactor":2}}'"""
    run_command(PAGE, folder, command)
    until("two replicas", lambda: in_sync(admin, 2, "orders"), timeout=60)
    run_command(PAGE, folder, command, replace={":2": ":3"})  # "the same with `3`"
    for name in ("small", "orders"):
        until_three_replicas(namespace, admin, name)


def until_three_replicas(namespace: Namespace, admin: KafkaAdmin, name: str) -> None:
    until("three replicas", lambda: in_sync(admin, 3, name), timeout=60)

    def over() -> bool:
        status = namespace.get(TOPIC_KIND, name)["status"]
        return (status["replicationFactor"], status["underReplicated"]) == (3, 0) and not [
            one for one in status["conditions"] if one["type"] in ("Rebalancing", "Warning")
        ]

    until("no more progress to tell", over)


def test_a_fourth_broker_gets_its_share_and_gives_it_back(
    namespace: Namespace, admin: KafkaAdmin, load: Load, folder: Path
) -> None:
    def on_the_fourth() -> list[Any]:
        return [one for one in admin.replicas() if 3 in one.replicas]

    before = ids(namespace)
    run_command(
        PAGE, folder, """kubectl patch msc three --type merge -p '{"spec":{"brokers":{"replicas":4}}}'"""
    )
    until("replicas on the fourth", on_the_fourth, timeout=120)
    until("all of them moved", settled(namespace, "Rebalancing"), timeout=120)
    assert namespace.get(KIND, "three")["status"]["brokers"] == {"desired": 4, "ready": 4}

    namespace.patch(KIND, "three", {"spec": {"brokers": {"replicas": 3}}})
    until("the fourth gone", lambda: len(pods(namespace)) == 3, timeout=180)
    until("all is well", settled(namespace, "Rebalancing"), timeout=60)
    until("nothing on the fourth", lambda: not on_the_fourth())
    assert ids(namespace) == before, "nobody else was restarted"
    claims = [one["metadata"]["name"] for one in namespace.list("pvc", "-l", BROKERS)]
    assert "data-three-brokers-3" in claims
    load.until(load.ledger.count + 100)


def test_a_broker_with_an_empty_volume_copies_its_replicas(
    namespace: Namespace, admin: KafkaAdmin, folder: Path
) -> None:
    """As docs/troubleshooting.md replaces a broken disk."""
    page, names = ROOT / "docs/troubleshooting.md", {"NAME": "three", "-N": "-1"}
    until("every replica in sync", lambda: in_sync(admin, 3, "orders"))
    before = namespace.get("pvc", "data-three-brokers-1")["metadata"]["uid"]
    run_command(page, folder, "kubectl delete pvc data-NAME-brokers-N --wait=false", replace=names)
    run_command(page, folder, "kubectl delete pod NAME-brokers-N", replace=names)
    until(
        "the Cluster ready again",
        lambda: len(pods(namespace)) == 3 and all(map(ready, pods(namespace).values())),
    )
    assert namespace.get("pvc", "data-three-brokers-1")["metadata"]["uid"] != before
    until("every replica in sync again", lambda: in_sync(admin, 3, "orders"))


def test_every_record_that_was_acknowledged_is_there(bootstrap: str, loads: list[Load]) -> None:
    ledgers = [load.ledger for load in loads]
    assert len(ledgers) == 2
    assert not [problem for ledger in ledgers for problem in ledger.failed]
    counts = check(bootstrap, "orders", loads)
    assert sum(counts.values()) == sum(ledger.count for ledger in ledgers)


def test_a_paused_cluster_is_left_alone(namespace: Namespace, folder: Path) -> None:
    run_command(PAGE, folder, "kubectl annotate msc three millstream.dev/paused=true")
    namespace.wait_condition(KIND, "three", "Paused", reason="ReconcilePaused")
    namespace.kubectl("delete", "pdb", "three-brokers")
    time.sleep(6)  # longer than the interval between two reconciles
    assert not namespace.list("pdb", "-l", BROKERS)
    namespace.kubectl("annotate", KIND, "three", "millstream.dev/paused-")
    until("the budget", lambda: namespace.list("pdb", "-l", BROKERS), timeout=30)


def test_deleting_it_keeps_the_volumes(namespace: Namespace, folder: Path) -> None:
    CLEAN_UP.run(folder)
    assert not namespace.list("pod", "-l", "millstream.dev/cluster=three")
    claims = sorted(one["metadata"]["name"] for one in namespace.list("pvc"))
    assert claims == [
        *(f"data-three-brokers-{n}" for n in range(4)),
        *(f"data-three-zookeeper-{n}" for n in (1, 2, 3)),
    ]
    VOLUMES.run(folder)
    assert not namespace.list("pvc")
