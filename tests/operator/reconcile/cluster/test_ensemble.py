"""The ZooKeeper servers of a Cluster: their objects, the quorum that brokers wait for, and one restart at a time."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_harness.broker import fixed_port
from millstream_harness.cluster_objects import (
    ENSEMBLE,
    a_cluster,
    claim,
    claimed,
    server_pod,
    sizes,
    stateful_set,
)
from millstream_harness.in_memory import InMemory, in_memory
from millstream_operator.models import Cluster
from millstream_operator.models.conditions import Reason
from millstream_operator.models.roll import Roll, RollingPod
from millstream_operator.reconcile.cluster.ensemble import (
    REVISION,
    apply_ensemble,
    plan_roll,
    roll_ensemble,
    server_address,
    why_no_zookeeper,
)
from millstream_operator.reconcile.cluster.plan import is_settled
from millstream_operator.reconcile.cluster.rolling import TEMPLATE_CHANGED
from millstream_operator.resources.images import Images

Said = list[tuple[Reason, str]]


def servers(*states: str) -> list[RollingPod]:
    """Each server is "ready", "down" or "ended", plus "stale" if its restart is due: "ready stale"."""
    return [
        RollingPod(
            number,
            f"z-{number}",
            "ready" in state,
            (TEMPLATE_CHANGED,) if "stale" in state else (),
            "ended" not in state,
        )
        for number, state in enumerate(states, 1)
    ]


@pytest.mark.parametrize(
    ("states", "restarts", "blocked", "remaining"),
    [
        (("ready", "ready", "ready"), None, "", 0),
        (("ready stale", "ready stale", "ready stale"), "z-1", "", 3),
        (("ready", "ready stale", "ready stale"), "z-2", "", 2),
        (("down", "ready stale", "ready stale"), None, "waiting for ZooKeeper servers to be ready: z-1", 2),
        (("ready stale", "ready stale", "down"), None, "waiting for ZooKeeper servers to be ready: z-3", 2),
        (("ready stale", "down stale", "ready stale"), "z-2", "", 3),
        (("down stale", "down stale", "down stale"), "z-1", "", 3),
        (("down", "down stale", "down"), "z-2", "", 1),
        # After the restart of the first server a leader is elected.
        (
            ("down", "down stale", "ready stale"),
            None,
            "waiting for ZooKeeper servers to be ready: z-1, z-2",
            2,
        ),
        (("down", "ended stale", "ready stale"), "z-2", "", 2),
        (
            ("ready stale", "ready"),
            None,
            "waiting for ZooKeeper servers to be ready: 2 of 3 pods are there",
            1,
        ),
        (("ready", "ready"), None, "", 0),
        (("ready", "down", "ready"), None, "", 0),
        (("ready", "down"), None, "waiting for ZooKeeper servers to be ready: z-2", 0),
        ((), None, "waiting for ZooKeeper servers to be ready: 0 of 3 pods are there", 0),
    ],
)
def test_the_next_server(states: Sequence[str], restarts: str | None, blocked: str, remaining: int) -> None:
    roll = plan_roll(servers(*states), 3)
    assert (roll.restart and roll.restart.name, roll.blocked, roll.remaining) == (
        restarts,
        blocked,
        remaining,
    )


def test_the_only_server_restarts_too() -> None:
    assert plan_roll(servers("ready stale"), 1).words == "restarting z-1 (PodTemplateChanged); 1 to go"
    assert plan_roll(servers("down"), 1).words == "waiting for ZooKeeper servers to be ready: z-1"


STATES = ["ready", "ready stale", "down", "down stale", "ended", "ended stale"]


@given(st.lists(st.sampled_from(STATES), min_size=3, max_size=3))
def test_no_restart_takes_a_second_server_away_and_each_roll_ends(states: list[str]) -> None:
    for _ in range(2 * len(states)):
        there = servers(*states)
        roll = plan_roll(there, len(states))
        if roll.restart is not None:
            others = [server.ready for server in there if server is not roll.restart]
            assert all(others) or not roll.restart.running or not (any(others) or roll.restart.ready)
            states[there.index(roll.restart)] = "ready"  # it comes back
        elif "down" in states:
            states[states.index("down")] = "ready"  # a server with the change recovers
        elif "ended" in states:
            states[states.index("ended")] = "ready"
        elif "down stale" in states:
            states[states.index("down stale")] = "ready stale"  # a leader is elected
    assert states == ["ready"] * 3


def with_servers(*states: str) -> InMemory:
    """An existing ensemble, with its pods."""
    found = in_memory()
    ensemble(found, a_cluster(**ENSEMBLE))
    live = found.kube.objects["StatefulSet", "east-zookeeper"]
    live["metadata"]["generation"] = 2
    live["status"] = {"observedGeneration": 2, "updateRevision": "new"}
    for number, state in enumerate(states, 1):
        found.kube.put(server_pod(number, ready="ready" in state, stale="stale" in state))
    return found


def rolled(found: InMemory) -> Roll:
    cluster = a_cluster(**ENSEMBLE)
    return roll_ensemble(found.services, cluster, found.kube.objects["StatefulSet", "east-zookeeper"])


def test_an_ensemble_is_settled_when_all_servers_are_as_they_should_be() -> None:
    found = with_servers("ready", "ready", "ready")

    def settled() -> bool:
        live = apply_ensemble(found.services, a_cluster(**ENSEMBLE), lambda *_: None)
        return live is not None and is_settled(live)

    assert not settled()
    found.kube.objects["StatefulSet", "east-zookeeper"]["status"] |= {
        "updatedReplicas": 3,
        "readyReplicas": 3,
    }
    assert settled()


def test_a_server_is_restarted_when_the_change_has_been_seen() -> None:
    found = with_servers("ready stale", "ready stale", "ready")
    live = found.kube.objects["StatefulSet", "east-zookeeper"]
    live["metadata"]["generation"] = 3
    roll = rolled(found)
    assert roll.words == "waiting for Kubernetes to see the change of the ZooKeeper servers"
    assert found.kube.deleted == []
    live["status"]["observedGeneration"] = 3
    roll = rolled(found)
    assert roll.words == "restarting east-zookeeper-1 (PodTemplateChanged); 2 to go"
    assert found.kube.deleted == [("Pod", "east-zookeeper-1")]
    event = ("Normal", "PodTemplateChanged", "restarting east-zookeeper-1")
    assert found.kube.events == [event]


def test_a_restart_that_a_user_asked_for_is_told_as_that() -> None:
    found = with_servers("ready stale", "ready", "ready")
    template = found.kube.objects["StatefulSet", "east-zookeeper"]["spec"]["template"]
    template["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "2026-11-23T08:00:00Z"}
    assert rolled(found).words == "restarting east-zookeeper-1 (RestartRequested); 1 to go"


def test_a_users_change_waits_while_a_server_is_down() -> None:
    found = with_servers("ready stale", "ready stale", "down")
    roll = rolled(found)
    words = "waiting for ZooKeeper servers to be ready: east-zookeeper-3"
    assert roll == Roll(blocked=words, is_usual=True, remaining=2)
    assert found.kube.deleted == []


def test_a_server_that_goes_is_not_restarted_again() -> None:
    found = with_servers("ready stale", "ready stale", "ready")
    found.kube.objects["Pod", "east-zookeeper-1"]["metadata"]["deletionTimestamp"] = "2026-11-23T08:00:00Z"
    roll = rolled(found)
    assert roll.words == "waiting for ZooKeeper servers to be ready: east-zookeeper-1"
    assert found.kube.deleted == []


def test_pods_of_others_are_no_servers() -> None:
    found = with_servers("ready", "ready", "ready")
    stranger = found.kube.objects.pop(("Pod", "east-zookeeper-1"))
    labels = {**stranger["metadata"]["labels"], REVISION: "old"}
    servers = [found.kube.objects.pop(("Pod", f"east-zookeeper-{number}")) for number in (2, 3)]
    found.kube.put({**stranger, "metadata": {"namespace": "ns", "name": "debug-1", "labels": labels}})
    for one in (stranger, *servers):
        found.kube.put(one)
    assert rolled(found).words == ""
    found.kube.objects["Pod", "east-zookeeper-2"]["metadata"]["labels"][REVISION] = "old"
    assert rolled(found).words == "restarting east-zookeeper-2 (PodTemplateChanged); 1 to go"


def ensemble(found: InMemory, cluster: Cluster) -> Said:
    said: Said = []
    apply_ensemble(found.services, cluster, lambda reason, words: said.append((reason, words)))
    return said


@pytest.mark.parametrize("zookeeper", [None, {"connect": "zk:2181"}])
def test_zookeeper_servers_of_others_are_left_alone(zookeeper: dict[str, Any] | None) -> None:
    found = in_memory()
    assert ensemble(found, a_cluster(zookeeper=zookeeper)) == []
    assert found.kube.applied == []


def test_an_ensemble_comes_after_its_services() -> None:
    found = in_memory()
    ensemble(found, a_cluster(**ENSEMBLE))
    made = [(one["kind"], one["metadata"]["name"]) for one in found.kube.applied]
    names = ["east-zookeeper", "east-zookeeper1", "east-zookeeper2", "east-zookeeper3"]
    others = [("PodDisruptionBudget", "east-zookeeper"), ("StatefulSet", "east-zookeeper")]
    assert made == [*(("Service", name) for name in names), *others]
    assert found.kube.objects["StatefulSet", "east-zookeeper"]["spec"]["replicas"] == 3


def test_an_ensembles_volumes_grow_too() -> None:
    names = [f"data-east-zookeeper-{server}" for server in range(5)]
    found = in_memory(stateful_set("east-zookeeper", "1Gi"), *(claim(name, "1Gi") for name in names))
    ensemble(found, a_cluster(**ENSEMBLE | {"zookeeper": {"replicas": 3, "storage": {"size": "2Gi"}}}))
    assert sizes(found) == dict.fromkeys(names[1:4], "2Gi")  # its servers are counted from 1
    assert claimed(found.kube.objects["StatefulSet", "east-zookeeper"]) == "1Gi"


@pytest.mark.parametrize(
    ("servers", "ready", "waits"),
    [
        (1, 0, "0 of 1 servers are ready, and 1 are needed"),
        (1, 1, None),
        (3, 1, "1 of 3 servers are ready, and 2 are needed"),
        (3, 2, None),
    ],
)
def test_brokers_wait_for_a_majority_of_their_zookeeper(servers: int, ready: int, waits: str | None) -> None:
    live = stateful_set("east-zookeeper", readyReplicas=ready)
    problem = why_no_zookeeper(in_memory().services, a_cluster(zookeeper={"replicas": servers}), live)
    if waits is None:
        assert problem is None
    else:
        assert problem is not None
        assert problem.reason is Reason.ZOOKEEPER_NOT_READY
        assert problem.message == f"the brokers wait for ZooKeeper: {waits}"


def test_a_broker_without_zookeeper_does_not_wait_for_it() -> None:
    assert why_no_zookeeper(in_memory().services, a_cluster(), None) is None


def test_one_server_that_answers_is_enough() -> None:
    gone = f"127.0.0.1:{fixed_port()}"
    cluster = a_cluster(zookeeper={"connect": f"{gone},nonsense:port/east"})
    problem = why_no_zookeeper(in_memory().services, cluster, None)
    assert problem is not None
    assert problem.message.endswith(f"no server answers at {gone},nonsense:port")
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = a_cluster(zookeeper={"connect": f"{gone}, {there}/east"})
        assert why_no_zookeeper(in_memory().services, cluster, None) is None


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("zk", ("zk", 2181)),
        ("zk:2182", ("zk", 2182)),
        (" zk.ns.svc:2181 ", ("zk.ns.svc", 2181)),
        ("[::1]:2181", ("::1", 2181)),
    ],
)
def test_a_server_of_zookeeper_is_a_host_and_maybe_a_port(server: str, address: tuple[str, int]) -> None:
    assert server_address(server) == address


def test_servers_of_an_earlier_release_wait_for_their_upgrade() -> None:
    found, cluster = in_memory(), a_cluster(**ENSEMBLE)

    def image() -> str:
        live = found.kube.objects["StatefulSet", f"{cluster.name}-zookeeper"]
        return str(live["spec"]["template"]["spec"]["containers"][0]["image"])

    apply_ensemble(found.services, cluster, lambda *_: None)
    before = image()
    live = f"{cluster.name}-zookeeper"
    found.kube.objects["StatefulSet", live]["status"] = {"readyReplicas": 2}
    newer = dataclasses.replace(found.services, images=Images(zookeeper="zookeeper:later"))
    asked: list[bool] = []

    def may(answer: bool) -> bool:
        asked.append(answer)
        return answer

    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(True))
    assert (image(), asked) == (before, []), "one is down, and a restart of another would cost the quorum"
    found.kube.objects["StatefulSet", live]["status"] = {"readyReplicas": 3}
    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(False))
    assert image() == before
    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(True))
    assert image() == "zookeeper:later"
    apply_ensemble(newer, cluster, lambda *_: None, lambda: may(False))
    assert asked == [False, True], "what is done is not asked for again"


def test_servers_without_a_quorum_wait_for_nothing() -> None:
    """For example after a missing image: otherwise a Cluster that waits for its brokers could not be upgraded."""
    found, cluster = in_memory(), a_cluster(**ENSEMBLE)
    apply_ensemble(found.services, cluster, lambda *_: None)
    live = f"{cluster.name}-zookeeper"
    found.kube.objects["StatefulSet", live]["status"] = {"readyReplicas": 1}
    newer = dataclasses.replace(found.services, images=Images(zookeeper="zookeeper:later"))
    apply_ensemble(newer, cluster, lambda *_: None, lambda: False)
    template = found.kube.objects["StatefulSet", live]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "zookeeper:later"
