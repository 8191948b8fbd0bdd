"""Looks at a Cluster: what is done to its objects and brokers, what it shows, and when to look again."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.in_memory import in_memory, stored
from millstream_harness.manifests import resource
from millstream_operator.kafka_admin import (
    AdminError,
    BrokersState,
    ConfigChange,
    PartitionReplicas,
    Reassignment,
    Refusal,
)
from millstream_operator.kube import KubeError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.reconcile.cluster import broker_pods, reconcile_cluster
from millstream_operator.resources.owned import selector

INTERNAL = {"name": "internal", "type": "Internal", "port": 9092}
PUBLIC = {"name": "public", "type": "LoadBalancer", "port": 9094}
SETTLED, SOON = 60, 5


class East:
    """A Cluster named east, and what there is of it in Kubernetes."""

    def __init__(self, count: int = 1, status: dict[str, Any] | None = None, **spec: Any) -> None:
        self.metadata: dict[str, Any] = {}
        self.memory = in_memory(stored(resource("Cluster", "east"), status))
        self.kube = self.memory.kube
        self.zookeeper: dict[str, Any] = {}
        self.change(count, **spec)

    def change(self, count: int, **spec: Any) -> None:
        """Another spec, of so many brokers."""
        if count > 1:
            self.zookeeper = {"zookeeper": {"connect": "127.0.0.1:1"}}
        found = self.kube.objects["Cluster", "east"]
        found["spec"] = {**self.zookeeper, **spec, "brokers": {"replicas": count, **spec.get("brokers", {})}}

    def look(self, **answers: Any) -> float:
        """``answers``: of the brokers; those of a cluster at rest need not be named."""
        self.memory.brokers.answers = answers
        self.memory.brokers.asked.clear()
        self.kube.applied.clear()
        manifest = self.kube.objects["Cluster", "east"]
        manifest["metadata"].update(self.metadata)
        return reconcile_cluster(self.memory.services, decode_as(Cluster, manifest))

    def run(self, *ready: bool, **status: Any) -> None:
        """Have a pod for each broker, made from the template that there is if it is new."""
        manifest = self.kube.objects["StatefulSet", "east-brokers"]
        manifest["status"] = {"readyReplicas": sum(ready)}
        cluster = decode_as(Cluster, self.kube.objects["Cluster", "east"])
        for broker, is_ready in enumerate(ready):
            name = f"east-brokers-{broker}"
            condition = {"type": "Ready", "status": "True" if is_ready else "False"}
            made = self.kube.objects.get(("Pod", name), {}).get("metadata")
            metadata = made or {
                "namespace": "ns",
                "name": name,
                "labels": selector(cluster),
                "annotations": manifest["spec"]["template"]["metadata"]["annotations"],
            }
            host = {"hostIP": f"10.0.0.{broker}"}
            pod = {
                "kind": "Pod",
                "metadata": metadata,
                "status": {"conditions": [condition], **host, **status},
            }
            self.kube.put(pod)

    @property
    def status(self) -> dict[str, Any]:
        return self.memory.status("Cluster", "east")

    def says(self, which: str = "Ready") -> tuple[str, str, str] | None:
        return self.memory.condition("Cluster", "east", which)

    @property
    def replicas(self) -> int:
        """Of the brokers' StatefulSet."""
        found: int = self.kube.objects["StatefulSet", "east-brokers"]["spec"]["replicas"]
        return found

    @property
    def touched(self) -> set[str]:
        """Kinds of which the last look wrote something, but its own status."""
        return {one["kind"] for one in self.kube.applied} - {"Cluster"}

    def asked(self, request: str) -> list[Any]:
        return self.memory.brokers.requests(request)


def running(brokers: int, **spec: Any) -> East:
    """One whose brokers run and are ready."""
    east = East(brokers, {"clusterId": "id"}, **spec)
    east.look()
    east.run(*[True] * brokers)
    return east


def partition(topic: str, index: int, *replicas: int, **more: Any) -> PartitionReplicas:
    return PartitionReplicas(topic, index, replicas, replicas, **more)


def answers(*partitions: PartitionReplicas, **more: Any) -> dict[str, Any]:
    """Of three brokers that live."""

    def replicas(*, min_isr: bool) -> list[PartitionReplicas]:
        assert min_isr
        return list(partitions)

    alive = BrokersState(dict.fromkeys(range(3)), 0)
    return {"brokers": alive, "replicas": replicas, "reassigning": {}, "reassign": {}, **more}


def test_a_new_cluster_is_made_and_looked_at_again_soon() -> None:
    east = East()
    assert east.look() == SOON
    assert east.touched == {"Service", "ConfigMap", "PodDisruptionBudget", "StatefulSet"}
    assert east.says() == ("False", "BrokersStarting", "0 of 1 brokers are ready")
    shown = {key: value for key, value in east.status.items() if key != "conditions"}
    assert shown == {
        "observedGeneration": 2,
        "brokers": {"desired": 1, "ready": 0},
        "bootstrap": "east-bootstrap.ns.svc:9092",
    }
    assert len(east.status["conditions"]) == 1


def test_a_cluster_that_is_ready_rests() -> None:
    east = East()
    east.look()
    east.run(True)
    assert east.look(cluster_id="abc") == SETTLED
    assert east.says() == ("True", "AllBrokersReady", "the broker is ready")
    assert (east.status["clusterId"], east.status["brokers"]) == ("abc", {"desired": 1, "ready": 1})
    assert east.touched == set()
    assert east.look() == SETTLED  # and asks its broker nothing
    assert east.kube.applied == []


def test_the_cluster_id_is_asked_for_until_it_is_known() -> None:
    east = East()
    east.look()
    east.run(True)
    assert east.look(cluster_id=AdminError("not yet")) == SOON
    assert "clusterId" not in east.status
    assert east.says() == ("True", "AllBrokersReady", "the broker is ready")
    assert east.look(cluster_id="abc") == SETTLED


def test_brokers_at_rest_are_asked_once_each() -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(partition("a", 0, 0, 1, 2))) == SETTLED
    assert [request for request, *_ in east.memory.brokers.asked] == ["reassigning", "replicas", "brokers"]
    assert east.says() == ("True", "AllBrokersReady", "all 3 brokers are ready")
    assert [one["type"] for one in east.status["conditions"]] == ["Ready"]


def test_brokers_wait_for_their_zookeeper() -> None:
    east = running(3)
    east.run(True, True, False)
    assert east.look(**answers()) == SOON
    assert east.says() == (
        "False",
        "ZooKeeperNotReady",
        "the brokers wait for ZooKeeper: no server answers at 127.0.0.1:1",
    )


def test_a_pod_that_is_not_ready_says_why() -> None:
    east = running(1)
    ended = {"terminated": {"exitCode": 1, "message": "no such key"}}
    east.run(False, containerStatuses=[{"ready": False, "state": ended}])
    assert east.look() == SOON
    assert east.says() == ("False", "BrokerFailed", "east-brokers-0: no such key")


def test_a_pod_whose_image_is_not_there_says_so() -> None:
    east = running(1)
    state = {"waiting": {"reason": "ErrImagePull"}}
    east.run(False, initContainerStatuses=[{"ready": False, "state": state}])
    east.look()
    assert east.says() == ("False", "BrokersStarting", "east-brokers-0: ErrImagePull")


def test_a_cluster_that_is_being_deleted_is_left_alone() -> None:
    east = East()
    east.metadata["deletionTimestamp"] = "2026-11-22T07:00:00Z"
    assert east.look() == SETTLED
    assert east.kube.applied == []


def test_a_paused_cluster_is_looked_at_and_not_changed() -> None:
    east = running(1)
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.change(2)
    assert east.look() == SETTLED
    assert east.touched == set()
    assert (east.says("Paused") or ())[:2] == ("True", "ReconcilePaused")
    assert east.says() == ("False", "BrokersStarting", "1 of 2 brokers are ready")
    east.change(1)
    east.metadata["annotations"] = {}
    east.look(**answers())
    assert east.says("Paused") is None


def test_a_condition_that_stays_keeps_its_time() -> None:
    since = "2026-01-01T00:00:00Z"
    paused = {"type": "Paused", "status": "True", "reason": "ReconcilePaused", "message": ""}
    east = East(status={"conditions": [{**paused, "lastTransitionTime": since}]})
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.look()
    assert east.status["conditions"][1]["lastTransitionTime"] == since


def test_a_spec_that_cannot_be_changes_nothing() -> None:
    east = running(1)
    east.change(1, config={"log.dirs": "/x"})
    assert east.look() == SOON
    assert (east.says() or ())[:2] == ("False", "InvalidConfig")
    assert east.touched == set()
    assert east.status["brokers"] == {"desired": 1, "ready": 1}


def test_brokers_wait_for_the_addresses_of_their_listeners() -> None:
    east = running(1)
    east.change(1, listeners=[INTERNAL, {**PUBLIC, "name": "wan", "port": 9095}, PUBLIC])
    assert east.look() == SOON
    assert east.says() == (
        "False",
        "ListenersPending",
        "waiting for the address of public of broker 0, wan of broker 0; brokers are as they were",
    )
    assert east.touched == {"Service"}


def given(east: East, *names: str) -> None:
    """Have load balancers give these Services an address."""
    for name in names:
        ingress = [{"ip": f"192.0.2.{name[-1]}"}]
        east.kube.objects["Service", name]["status"] = {"loadBalancer": {"ingress": ingress}}


def test_external_addresses_are_shown_and_stay_while_they_are_unknown() -> None:
    east = running(1)
    east.change(1, listeners=[INTERNAL, PUBLIC])
    east.look()
    assert "listeners" not in east.status
    given(east, "east-public-0")
    east.look(**answers())
    shown = [{"name": "public", "bootstrap": "192.0.2.0:9094"}]
    assert east.status["listeners"] == shown
    del east.kube.objects["Service", "east-public-0"]["status"]
    east.look(**answers())
    assert east.status["listeners"] == shown
    east.change(1, listeners=[INTERNAL])
    east.look(**answers())
    assert "listeners" not in east.status


def test_brokers_on_node_ports_are_reached_at_their_nodes() -> None:
    east = running(2)
    east.change(
        2, listeners=[INTERNAL, {"name": "nodes", "type": "NodePort", "port": 9094, "nodePort": 30000}]
    )
    east.look(**answers())
    shown = [{"name": "nodes", "bootstrap": "10.0.0.0:30000,10.0.0.1:30001"}]
    assert east.status["listeners"] == shown


LIVE = {"log.retention.ms": "2", "compression.type": "zstd", "log.retention.hours": "9"}


def test_brokers_are_told_what_they_take_while_they_run() -> None:
    east = running(1)
    east.kube.objects["Cluster", "east"]["status"]["configKeys"] = ["log.segment.bytes", "log.roll.ms"]
    east.change(1, config=LIVE)
    told = {
        "log.retention.ms": "1",
        "compression.type": "zstd",
        "log.segment.bytes": "5",
        "log.roll.jitter.ms": "1",
    }
    east.look(**answers(brokers_config=told, change_brokers_config=None))
    change = ConfigChange({"log.retention.ms": "2"}, ("log.segment.bytes",))
    assert east.asked("change_brokers_config") == [change]
    assert east.status["configKeys"] == ["compression.type", "log.retention.ms"]
    assert "ConfigMap" in east.touched  # their files have it too


@pytest.mark.parametrize("config", [{"log.retention.ms": "2"}, {}])
def test_keys_are_set_alone_and_reset_alone(config: dict[str, str]) -> None:
    east = running(1)
    east.kube.objects["Cluster", "east"]["status"]["configKeys"] = [] if config else ["log.retention.ms"]
    east.change(1, config=config)
    there = {} if config else {"log.retention.ms": "1"}
    assert east.look(brokers_config=there, change_brokers_config=None) == SETTLED
    change = ConfigChange(config, () if config else ("log.retention.ms",))
    assert east.asked("change_brokers_config") == [change]
    assert east.status.get("configKeys") == (list(config) or None)


def test_brokers_that_have_it_already_are_told_nothing() -> None:
    east = running(1)
    east.change(1, config={"log.retention.ms": "2"})
    assert east.look(brokers_config={"log.retention.ms": "2"}) == SETTLED
    assert east.status["configKeys"] == ["log.retention.ms"]


def test_configuration_that_brokers_refuse_reaches_no_file() -> None:
    east = running(1)
    east.change(1, config=LIVE)
    refused = Refusal("INVALID_CONFIG", "2 is too little")
    assert east.look(brokers_config={}, change_brokers_config=refused) == SOON
    assert east.says() == (
        "False",
        "InvalidConfig",
        "spec.config: 2 is too little; brokers are as they were",
    )
    assert east.touched == set()
    assert "configKeys" not in east.status


def test_configuration_that_cannot_be_told_now_is_told_soon() -> None:
    east = running(1)
    east.change(1, config={"log.retention.ms": "2"})
    assert east.look(brokers_config=AdminError("nobody listens")) == SOON
    assert "configKeys" not in east.status
    assert "ConfigMap" in east.touched
    assert east.says() == ("True", "AllBrokersReady", "the broker is ready")


def test_brokers_that_start_take_configuration_from_their_files() -> None:
    east = East(config=LIVE)
    east.look()
    assert "configKeys" not in east.status
    assert east.memory.brokers.asked == []


def test_a_broker_leaves_when_it_has_no_replica() -> None:
    east = running(2)
    east.change(1)
    assert east.look(**answers(partition("a", 0, 1))) == SOON
    assert east.asked("reassign") == [{("a", 0): (0,)}]
    assert east.says("Rebalancing") == ("True", "Draining", "brokers 1: 1 partitions to go")
    assert (east.replicas, east.status["brokers"]) == (2, {"desired": 1, "ready": 2})
    assert east.look(**answers(partition("a", 0, 0))) == SETTLED
    assert (east.replicas, east.says("Rebalancing")) == (1, None)


def test_what_brokers_refuse_to_move_is_said() -> None:
    east = running(3)
    east.change(2)
    no = {("b", 1): Refusal("X", "b is busy"), ("a", 2): Refusal("X", "a is busy")}
    there = [partition("a", 2, 2), partition("b", 1, 2)]
    assert east.look(**answers(*there, reassign=no)) == SOON
    assert east.says() == ("False", "ScaleDownRefused", "a-2 cannot leave its broker: a is busy")


def test_brokers_that_cannot_leave_stay_and_say_why() -> None:
    east = running(3)
    east.change(2)
    east.run(True, False, False)
    assert east.look(**answers(partition("a", 0, 0, 1, 2))) == SOON
    status, reason, _ = east.says() or ("", "", "")
    assert (status, reason, east.replicas) == ("False", "ScaleDownRefused", 3)


def test_brokers_that_do_not_answer_stay() -> None:
    east = running(3)
    east.change(2)
    assert east.look(**answers(reassigning=AdminError("nobody listens"))) == SOON
    assert [request for request, *_ in east.memory.brokers.asked] == ["reassigning"]
    assert east.says("Rebalancing") == ("True", "Draining", "brokers 2: the brokers do not answer")
    assert east.replicas == 3


@pytest.mark.parametrize("silent", ["reassigning", "replicas", "brokers"])
def test_a_cluster_whose_brokers_do_not_answer_is_looked_at_again_soon(silent: str) -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(partition("a", 0, 0, 1, 2), **{silent: AdminError("no")})) == SOON
    assert east.says() == ("True", "AllBrokersReady", "all 3 brokers are ready")


def test_more_brokers_come_at_once() -> None:
    east = running(1)
    east.change(3)
    assert east.look(**answers(partition("a", 0, 0))) == SOON
    assert east.replicas == 3
    assert east.asked("reassign") == []


UNEVEN = [partition("a", index, index % 2) for index in range(6)]


def test_a_new_broker_gets_its_share_where_that_is_wanted() -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(*UNEVEN)) == SOON
    (moves,) = east.asked("reassign")
    assert list(moves.values()) == [(2,), (2,)]
    assert east.says("Rebalancing") == ("True", "Spreading", "2 partitions are being moved")


def test_replicas_on_their_way_to_a_new_broker_are_told() -> None:
    east = running(3, rebalance="Automatic")
    moving = {("a", 0): Reassignment((2,), (0,))}
    assert east.look(**answers(*UNEVEN, reassigning=moving)) == SOON
    assert east.asked("reassign") == []
    assert east.says("Rebalancing") == ("True", "Spreading", "1 partitions are being moved")


def test_replicas_stay_where_nobody_wants_them_spread() -> None:
    east = running(3)
    assert east.look(**answers(*UNEVEN)) == SETTLED
    assert east.says("Rebalancing") is None


def test_two_brokers_share_as_well() -> None:
    east = running(2, rebalance="Automatic")
    east.look(**answers(partition("a", 0, 0), partition("a", 1, 0)))
    assert east.asked("reassign") == [{("a", 0): (1,)}]


def test_replicas_are_spread_when_all_brokers_live() -> None:
    east = running(3, rebalance="Automatic")
    assert east.look(**answers(*UNEVEN, brokers=BrokersState({0: None, 1: None}, 0))) == SETTLED
    assert east.asked("reassign") == []


def test_spreading_keeps_partitions_in_their_racks() -> None:
    east = running(3, rebalance="Automatic")
    there = [partition("a", index, index % 2, 1 - index % 2) for index in range(4)]
    east.look(**answers(*there, brokers=BrokersState({0: "x", 1: "y", 2: "x"}, 0)))
    assert east.asked("reassign") == [{("a", 0): (2, 1), ("a", 1): (1, 2)}]
    east.look(**answers(*there, brokers=BrokersState({0: "", 1: None, 2: ""}, 0)))
    assert [sorted(moves) for moves in east.asked("reassign")] == [[("a", 0), ("a", 1)]]


def test_replicas_are_not_spread_while_there_is_something_else_to_do() -> None:
    east = running(3, rebalance="Automatic")
    east.run(True, True, False)
    east.look(**answers(*UNEVEN))
    assert east.asked("reassign") == []


def changed(brokers: int = 3, **spec: Any) -> East:
    """One whose brokers have to restart."""
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
    assert east.kube.events == [("ConfigurationChanged", f"restarting {name}") for name in order]
    assert east.look(**answers(WHOLE)) == SETTLED
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


def test_brokers_wait_for_pods_that_are_not_there_yet() -> None:
    east = changed()
    del east.kube.objects["Pod", "east-brokers-2"]
    east.look(**answers(WHOLE))
    words = "waiting for brokers to be ready: 2 of 3 pods are there"
    assert east.says("RollingUpdate") == ("True", "RestartBlocked", words)


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
    words = "spec.brokers.rack: the operator may not look at nodes: brokers have no rack"
    assert east.says("Warning") == ("True", "RacksUnknown", words)


def test_pods_of_others_are_no_brokers_though_they_have_our_labels() -> None:
    live = {"metadata": {"name": "a-brokers"}, "spec": {"template": {"metadata": {}}}}
    pods = [{"metadata": {"name": name}} for name in ("a-brokers-0", "a-brokers-x", "b-brokers-1", "debug")]
    assert [pod.broker for pod in broker_pods(live, pods)] == [0]


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
    pod = {"metadata": {"name": "a-brokers-0"}, "status": {"containerStatuses": containers}}
    assert [one.running for one in broker_pods(live, [pod])] == [runs]
