"""Reconciles of a Cluster whose brokers must restart: order, waiting, and upgrades in turns."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from millstream_harness.cluster_looks import (
    LIVE,
    SETTLED,
    SOON,
    East,
    answers,
    partition,
    running,
)
from millstream_harness.cluster_objects import server_pod
from millstream_harness.in_memory import NOW, stored
from millstream_harness.manifests import cluster
from millstream_operator.kafka.records import AdminError, PartitionReplicas, Refusal
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models.keys import Key
from millstream_operator.reconcile.cluster.plan import broker_pods
from millstream_operator.resources import broker_config
from millstream_operator.resources.images import Images
from millstream_operator.state.upgrade_queue import UpgradeQueue

pytestmark = pytest.mark.process


def changed(brokers: int = 3, **spec: Any) -> East:
    """A Cluster whose brokers must restart."""
    east = running(brokers)
    east.change(brokers, config={"log.retention.hours": "9"}, **spec)
    return east


WHOLE = partition("a", 0, 0, 1, 2, min_isr=2)


def test_brokers_restart_one_after_the_other_and_the_controller_last() -> None:
    east = changed()
    order = []
    for _ in range(3):
        assert east.look(**answers(WHOLE)) == SOON
        (gone,) = {f"east-brokers-{n}" for n in range(3)} - {
            n for kind, n in east.kube.objects if kind == "Pod"
        }
        order.append(gone)
        east.run(True, True, True)
    assert order == ["east-brokers-1", "east-brokers-2", "east-brokers-0"]
    restarts = [("Normal", "ConfigurationChanged", f"restarting {name}") for name in order]
    assert [one for one in east.kube.events if one.reason == "ConfigurationChanged"] == restarts
    assert east.look(**answers(WHOLE)) == SETTLED
    assert east.says("RollingUpdate") is None
    complete = ("Normal", "RollingUpdateComplete", "all pods match the Cluster's spec")
    assert east.kube.events.count(complete) == 1


def test_a_roll_ends_when_the_last_broker_is_back() -> None:
    east = changed()
    complete = ("Normal", "RollingUpdateComplete", "all pods match the Cluster's spec")
    for _ in range(3):
        east.look(**answers(WHOLE))
        east.run(True, True, True)
    del east.kube.objects["Pod", "east-brokers-0"]  # readyReplicas still counts it
    assert east.look(**answers(WHOLE)) == SOON
    waits = "waiting for brokers to be ready: 2 of 3 pods are there"
    assert east.says("RollingUpdate") == ("True", "Restarting", waits)
    east.run(False, True, True)
    assert east.look(**answers(WHOLE)) == SOON
    waits = "waiting for brokers to be ready: east-brokers-0"
    assert east.says("RollingUpdate") == ("True", "Restarting", waits)
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.look(**answers(WHOLE))
    assert east.says("RollingUpdate") == ("True", "Restarting", waits)
    east.metadata["annotations"] = {}
    east.run(False, False, True)
    east.look(**answers(WHOLE))
    waits = "waiting for brokers to be ready: east-brokers-0, east-brokers-1"
    assert east.says("RollingUpdate") == ("True", "Restarting", waits), "nothing is left to restart"
    assert complete not in east.kube.events
    east.run(True, True, True)
    assert east.look(**answers(WHOLE)) == SETTLED
    assert east.says("RollingUpdate") is None
    assert complete in east.kube.events
    east.run(False, True, True)  # later, for another reason
    east.look(**answers(WHOLE))
    assert east.says("RollingUpdate") is None


def test_a_restart_says_which_broker_and_how_many_are_left() -> None:
    east = changed()
    east.look(**answers(WHOLE))
    assert east.says("RollingUpdate") == (
        "True",
        "Restarting",
        "restarting east-brokers-1 (ConfigurationChanged); 3 to go",
    )
    assert east.says("Warning") is None


def test_brokers_of_which_no_controller_is_known_restart_in_their_order() -> None:
    east = changed()
    assert east.look(**answers(WHOLE, brokers=AdminError("no"))) == SOON
    assert east.kube.deleted == [("Pod", "east-brokers-0")]


def test_a_restart_that_must_wait_says_for_what() -> None:
    east = changed()
    isrs = {"a": (0, 1), "b": (1, 2), "c": (0, 2)}
    behind = [PartitionReplicas(topic, 0, (0, 1, 2), isr, 2) for topic, isr in isrs.items()]
    assert east.look(**answers(*behind)) == SOON
    assert east.kube.deleted == []
    words = "east-brokers-1 waits: a-0 has 2 of 3 replicas in sync and must keep 2 without it and 1 more"
    assert east.says("RollingUpdate") == ("True", "RestartBlocked", words)


def test_brokers_wait_until_zookeeper_is_updated() -> None:
    east = changed()
    east.change(3, zookeeper={"replicas": 3}, config={"log.retention.hours": "9"})
    east.look(**answers(brokers=AdminError("no"), replicas=AdminError("no")))
    east.run(True, True, True)
    servers = east.kube.objects["StatefulSet", "east-zookeeper"]
    servers["status"] = {"updateRevision": "new", "updatedReplicas": 2, "readyReplicas": 3}
    for server in (1, 2, 3):
        east.kube.put(server_pod(server, stale=server == 2))
    east.kube.deleted.clear()
    assert east.look(**answers(WHOLE)) == SOON
    words = "restarting east-zookeeper-2 (PodTemplateChanged); 1 to go"
    assert east.says("RollingUpdate") == ("True", "Restarting", words)
    assert east.kube.deleted == [("Pod", "east-zookeeper-2")]
    servers["status"]["updatedReplicas"] = 3
    east.look(**answers(WHOLE))
    assert east.kube.deleted[1:] == [("Pod", "east-brokers-1")]


def test_servers_of_zookeeper_restart_while_no_broker_has_to() -> None:
    east = running(3, zookeeper={"replicas": 3})
    servers = east.kube.objects["StatefulSet", "east-zookeeper"]
    servers["status"] = {"updateRevision": "new", "readyReplicas": 1}
    east.kube.put(server_pod(1, stale=True))
    assert east.look(**answers(WHOLE)) == SOON
    words = "waiting for ZooKeeper servers to be ready: 1 of 3 pods are there"
    assert east.says("RollingUpdate") == ("True", "RestartBlocked", words)
    servers["status"] = {"updateRevision": "new", "updatedReplicas": 3, "readyReplicas": 2}
    for server in (1, 2, 3):
        east.kube.put(server_pod(server, ready=server < 3))
    assert east.look(**answers(WHOLE)) == SOON
    words = "waiting for ZooKeeper servers to be ready: east-zookeeper-3"
    assert east.says("RollingUpdate") == ("True", "Restarting", words)
    east.kube.put(server_pod(3))
    servers["status"]["readyReplicas"] = 3
    assert east.look(**answers(WHOLE)) == SETTLED
    assert east.says("RollingUpdate") is None
    east.kube.put(server_pod(3, ready=False))  # later, for another reason
    servers["status"]["readyReplicas"] = 2
    east.look(**answers(WHOLE))
    assert east.says("RollingUpdate") is None


def test_brokers_wait_for_pods_that_are_not_there_yet() -> None:
    east = changed()
    del east.kube.objects["Pod", "east-brokers-2"]
    east.look(**answers(WHOLE))
    words = "waiting for brokers to be ready: 2 of 3 pods are there"
    assert east.says("RollingUpdate") == ("True", "Restarting", words)


def test_a_minimum_that_needs_every_replica_is_a_warning() -> None:
    east = changed()
    demanding = [partition(topic, 0, 0, 1, 2, min_isr=3) for topic in "dcba"]
    east.look(**answers(*demanding))
    assert east.says("Warning") == (
        "True",
        "MinimumIsr",
        "min.insync.replicas of a, b, c needs every replica: while a broker restarts, acks=all waits; lower it or "
        "raise replicationFactor",
    )


def test_a_restart_goes_on_without_its_event() -> None:
    east = changed()
    east.kube.refused["Event"] = KubeError(403, "Forbidden", "no events")
    assert east.look(**answers(WHOLE)) == SOON
    assert east.kube.deleted == [("Pod", "east-brokers-1")]


def test_warnings_are_told_once_each() -> None:
    east = East(brokers={"rack": {}})
    east.kube.refused["Node"] = KubeError(403, "Forbidden", "no")
    east.look()
    words = "spec.brokers.rack: the operator has no right to read nodes: brokers have no rack"
    assert east.says("Warning") == ("True", "RacksUnknown", words)


def test_pods_of_others_are_no_brokers_though_they_have_our_labels() -> None:
    live = {"metadata": {"name": "a-brokers"}, "spec": {"template": {"metadata": {}}}}
    pods = [
        {"metadata": {"name": name, "uid": "u"}}
        for name in ("a-brokers-0", "a-brokers-x", "b-brokers-1", "debug")
    ]
    assert [pod.number for pod in broker_pods(live, pods)] == [0]


@pytest.mark.parametrize(
    ("states", "runs"),
    [
        ((), True),
        (("running",), True),
        (("terminated",), False),
        (("waiting", "running"), True),
        (("waiting",), False),
    ],
)
def test_a_process_may_live_unless_all_containers_have_ended(states: tuple[str, ...], runs: bool) -> None:
    live = {"metadata": {"name": "a-brokers"}, "spec": {"template": {"metadata": {}}}}
    containers = [{"name": state, "state": {state: {}}} for state in states]
    pod = {"metadata": {"name": "a-brokers-0", "uid": "u"}, "status": {"containerStatuses": containers}}
    assert [one.running for one in broker_pods(live, [pod])] == [runs]


def upgraded(east: East, **services: Any) -> None:
    """Give the operator the images and services of a new release."""
    images = Images(broker="broker:later")
    found = dataclasses.replace(east.memory.services, images=images, **services)
    object.__setattr__(east.memory, "services", found)


def test_a_new_release_restarts_brokers_in_the_maintenance_window_only() -> None:
    windows = [{"start": "22:00", "end": "23:00"}]
    east = running(3, maintenance={"windows": windows})
    upgraded(east)
    assert east.look(**answers(WHOLE)) == SETTLED
    assert east.kube.deleted == []
    assert (east.says("Upgrading") or ())[:2] == ("False", "OutsideMaintenanceWindow")
    upgraded(east, now=lambda: NOW + timedelta(hours=14, minutes=30))
    assert east.look(**answers(WHOLE)) == SOON
    assert east.kube.deleted == [("Pod", "east-brokers-1")]
    assert (east.says("Upgrading") or ())[:2] == ("True", "Upgrading")
    upgraded(east, now=lambda: NOW + timedelta(hours=15))
    east.run(True, True, True)
    east.look(**answers(WHOLE))
    assert east.kube.deleted == [("Pod", "east-brokers-1")], "the window has ended"


def test_what_its_user_changes_waits_for_no_window_and_takes_the_upgrade_along() -> None:
    windows = [{"start": "22:00", "end": "23:00"}]
    east = running(3, maintenance={"windows": windows})
    upgraded(east)
    east.change(3, maintenance={"windows": windows}, config={"log.retention.hours": "9"})
    east.look(**answers(WHOLE))
    assert east.kube.deleted == [("Pod", "east-brokers-1")]
    assert east.says("Upgrading") is None


def earlier(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> East:
    """Its brokers are from a release that named ZooKeeper's servers differently."""
    with monkeypatch.context() as before:
        before.setattr(broker_config, "connect_of", lambda cluster: "old-name:2181")
        east = running(3, **spec)
    upgraded(east)
    return east


def test_what_a_release_changes_in_the_configuration_is_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    east = earlier(monkeypatch, maintenance={"windows": [{"start": "22:00", "end": "23:00"}]})
    assert east.look(**answers(WHOLE)) == SETTLED
    assert east.kube.deleted == []
    assert (east.says("Upgrading") or ())[:2] == ("False", "OutsideMaintenanceWindow")
    upgraded(east, now=lambda: NOW + timedelta(hours=14, minutes=30))
    assert east.look(**answers(WHOLE)) == SOON
    assert east.says("RollingUpdate") == (
        "True",
        "Restarting",
        "restarting east-brokers-1 (Upgrade); 3 to go",
    )


def test_what_a_release_changes_in_the_configuration_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    east = earlier(monkeypatch)
    queue, store = east.memory.services.upgrade_queue, east.memory.services.store
    store.put(stored(cluster("west")))
    assert queue.ask(store, Key("Cluster", "ns", "west")) == Key("Cluster", "ns", "west")
    east.look(**answers(WHOLE))
    assert east.kube.deleted == []
    assert (east.says("Upgrading") or ())[:2] == ("False", "WaitingForCluster")


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"log.retention.hours": "9"}},
        {"zookeeper": {"connect": "theirs:2181"}},
    ],
)
def test_what_its_user_changes_in_the_configuration_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    windows = {"windows": [{"start": "22:00", "end": "23:00"}]}
    east = earlier(monkeypatch, maintenance=windows)
    east.change(3, maintenance=windows, **change)
    east.look(**answers(WHOLE))
    assert east.kube.deleted == [("Pod", "east-brokers-1")]
    assert "ConfigurationChanged" in (east.says("RollingUpdate") or ("", "", ""))[2]


def test_an_upgrade_ends_with_the_last_broker_and_gives_its_turn_to_the_next_cluster() -> None:
    east = running(3)
    upgraded(east)
    key = Key("Cluster", "ns", "east")
    queue, store = east.memory.services.upgrade_queue, east.memory.services.store
    for _ in range(3):
        assert east.look(**answers(WHOLE)) == SOON
        assert queue.ask(store, Key("Cluster", "ns", "west")) == key
        east.run(True, True, True)
    assert east.look(**answers(WHOLE)) == SETTLED
    assert east.says("Upgrading") is None
    assert queue.ask(store, Key("Cluster", "ns", "west")) != key


def half_upgraded() -> East:
    """The last of its brokers is terminating and will return with the new image."""
    east = running(3)
    upgraded(east)
    for _ in range(2):
        east.look(**answers(WHOLE))
        east.run(True, True, True)
    east.look(**answers(WHOLE))
    assert len(east.kube.deleted) == 3
    return east


def waits_for(east: East) -> bool:
    """Request the turn for Cluster west; whether east has it, and west waits."""
    queue, store = east.memory.services.upgrade_queue, east.memory.services.store
    return queue.ask(store, Key("Cluster", "ns", "west")) == Key("Cluster", "ns", "east")


def test_a_broker_that_is_going_but_still_ready_ends_no_upgrade() -> None:
    east = half_upgraded()
    east.run(True, True, True)
    going = east.kube.objects["Pod", "east-brokers-0"]
    going["metadata"] = {**going["metadata"], "deletionTimestamp": "2026-11-22T08:00:00Z"}
    east.look(**answers(WHOLE))
    assert (east.says("Upgrading") or ())[:2] == ("True", "Upgrading")
    assert waits_for(east)
    del east.kube.objects["Pod", "east-brokers-0"]
    east.run(True, True, True)
    assert east.look(**answers(WHOLE)) == SETTLED
    assert not waits_for(east)


def test_an_operator_that_starts_knows_of_an_upgrade_whose_last_broker_does_not_start() -> None:
    east = half_upgraded()
    east.run(False, True, True)
    east.look(**answers(WHOLE))
    upgraded(east, upgrade_queue=UpgradeQueue())
    east.look(**answers(WHOLE))
    assert (east.says("Upgrading") or ())[:2] == ("True", "Upgrading")
    assert waits_for(east)


@pytest.mark.parametrize("config", [{"log.dirs": "/x"}, LIVE])
def test_a_cluster_that_is_refused_gives_its_turn_back(config: dict[str, str]) -> None:
    east = half_upgraded()
    east.run(False, True, True)
    east.change(3, config=config)
    there = {"brokers_config": {}, "change_brokers_config": Refusal("INVALID_CONFIG", "no")}
    east.look(**answers(WHOLE, **there))
    assert (east.says() or ())[1] == "InvalidConfig"
    assert not waits_for(east)
