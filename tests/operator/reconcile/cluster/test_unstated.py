"""What a Cluster's spec states of the security of its listeners, and what it leaves out."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from millstream_harness.cluster_looks import INTERNAL, East, answers, partition
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import Cluster, decode_as
from millstream_operator.models.cluster import UNSTATED, Unstated
from millstream_operator.reconcile.cluster.apply import reconcile_cluster

PASSWORDS = {"authentication": {"type": "ScramSha512"}}
STATED = {"authentication": {"type": "None"}, "tls": "Disabled"}
SECURE = {"tls": "Enabled", **PASSWORDS}
OUTSIDE = {"name": "external", "type": "LoadBalancer", "port": 9094, "advertisedHost": "{broker}.example"}
SECURED = {"INTERNAL": "SASL_SSL", "REPLICATION-9091": "SSL", "PLATFORM-9090": "SASL_SSL"}
OPENED = {"INTERNAL": "PLAINTEXT", "REPLICATION-9091": "PLAINTEXT"}
HEALTHY = answers(partition("a", 0, 0, 1, 2))


def running(**spec: Any) -> East:
    east = East(3, {"clusterId": "id"}, **spec)
    east.look()
    east.run(True, True, True)
    east.look(**HEALTHY)
    return east


def names(east: East) -> str:
    """Which listeners the condition says leave what out."""
    found = east.says("OpenListeners")
    if found is None:
        return ""
    status, reason, words = found
    assert (status, reason) == ("True", "NotStated")
    return words.partition("so open: ")[2].partition(".")[0]


def protocols(east: East) -> dict[str, str]:
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    config = dict(line.split("=", 1) for line in text.splitlines())
    return dict(one.split(":") for one in config["listener.security.protocol.map"].split(","))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "authentication and tls of internal"),
        ({"listeners": [INTERNAL]}, "authentication and tls of internal"),
        ({"listeners": [{**INTERNAL, **PASSWORDS}]}, "tls of internal"),
        ({"listeners": [{**INTERNAL, "tls": "Enabled"}]}, "authentication of internal"),
        (
            {"listeners": [INTERNAL, {**OUTSIDE, "allowPlaintext": True}]},
            "authentication and tls of internal; authentication of external",
        ),
        ({"listenerDefaults": {"tls": "Disabled"}}, "authentication of internal"),
        ({"listenerDefaults": STATED}, ""),
        ({"listeners": [INTERNAL], "listenerDefaults": STATED}, ""),
        ({"listeners": [{**INTERNAL, **STATED}, {**OUTSIDE, **SECURE}]}, ""),
        ({"listenerDefaults": SECURE}, ""),
    ],
)
def test_listeners_that_do_not_state_that_they_are_open(spec: dict[str, Any], expected: str) -> None:
    assert names(East(3, **spec)) == "", "not looked at yet"
    east = running(**spec)
    assert names(east) == expected
    ready = east.says()
    assert ready is not None
    assert ready[0] == "True", "the condition concerns no broker"


@pytest.mark.parametrize(
    "stated",
    [{"listenerDefaults": STATED}, {"listeners": [{**INTERNAL, **STATED}]}],
    ids=["for all", "in the listener"],
)
def test_a_cluster_that_states_what_it_has_restarts_nothing(stated: dict[str, Any]) -> None:
    east = running()
    assert names(east) != ""
    before = dict(east.kube.objects["ConfigMap", "east-brokers"]["data"])
    east.change(3, **stated)
    east.look(**HEALTHY)
    assert names(east) == ""
    assert east.says("RollingUpdate") is None
    assert east.kube.objects["ConfigMap", "east-brokers"]["data"] == before


def test_a_paused_cluster_keeps_the_condition() -> None:
    east = running()
    east.metadata["annotations"] = {"millstream.dev/paused": "true"}
    east.look(**HEALTHY)
    assert names(east) == "authentication and tls of internal"


def test_defaults_close_the_added_listener() -> None:
    east = running(listenerDefaults=SECURE)
    assert protocols(east) == SECURED
    (listener,) = east.status["listeners"]
    assert (listener["name"], listener["protocol"]) == ("internal", "SASL_SSL")
    assert east.status["platform"]["internal"] == "Closed"


def test_a_listener_outweighs_the_defaults() -> None:
    plain = {**OUTSIDE, "allowPlaintext": True}
    east = running(listeners=[{**INTERNAL, "tls": "Disabled"}, plain], listenerDefaults=SECURE)
    assert protocols(east) == {
        "INTERNAL": "SASL_PLAINTEXT",
        "EXTERNAL": "SASL_PLAINTEXT",
        "REPLICATION-9091": "SASL_PLAINTEXT",
    }


@pytest.mark.parametrize("listener", [INTERNAL, {**INTERNAL, **STATED}], ids=["unstated", "stated"])
def test_clients_without_a_login_may_do_everything_where_the_internal_listener_is_open(
    listener: dict[str, Any],
) -> None:
    east = running(listeners=[listener], authorization={"type": "Simple", "superUsers": ["admin"]})
    text = east.kube.objects["ConfigMap", "east-brokers"]["data"]["server.properties"]
    assert "super.users=User:ANONYMOUS;User:admin" in text.splitlines()


def set_up(east: East, new_clusters: Unstated) -> None:
    """The operator starts with this setting."""
    services = replace(east.memory.services, new_clusters=new_clusters)
    object.__setattr__(east.memory, "services", services)


def new(decision: Unstated = Unstated.SECURE, **spec: Any) -> East:
    """A Cluster that no operator has seen, and an operator whose new Clusters are such."""
    east = East(3, **spec)
    set_up(east, decision)
    return east


def decided(east: East) -> str | None:
    annotations = east.kube.objects["Cluster", "east"]["metadata"].get("annotations") or {}
    found: str | None = annotations.get(UNSTATED)
    return found


def without_annotation(east: East) -> None:
    del east.kube.objects["Cluster", "east"]["metadata"]["annotations"][UNSTATED]


def test_a_new_cluster_that_states_nothing_is_secure_from_its_first_broker_on() -> None:
    east = new()
    east.look()
    assert decided(east) == "Secure"
    assert protocols(east) == SECURED
    assert names(east) == ""
    order = [
        (one["kind"], bool(one["metadata"].get("annotations", {}).get(UNSTATED))) for one in east.kube.applied
    ]
    assert ("StatefulSet", True) in order, "it has a copy"
    (listener,) = east.status["listeners"]
    assert (listener["protocol"], listener["caSecret"]) == ("SASL_SSL", "east-cluster-ca-cert")


def test_a_new_cluster_that_states_that_it_is_open_is_open() -> None:
    east = new(listenerDefaults=STATED)
    east.look()
    assert protocols(east) == OPENED
    assert (decided(east), names(east)) == ("Secure", ""), "a listener that is added later is secure"


def test_a_cluster_from_before_stays_open_and_is_named() -> None:
    east = running()
    assert decided(east) is None
    set_up(east, Unstated.SECURE)
    before = dict(east.kube.objects["ConfigMap", "east-brokers"]["data"])
    for _ in range(2):
        east.look(**HEALTHY)
        assert decided(east) == "Open"
        assert names(east) == "authentication and tls of internal"
        assert east.kube.objects["ConfigMap", "east-brokers"]["data"] == before
    assert "Cluster" not in {one["kind"] for one in east.kube.applied if "spec" in one}


def test_a_cluster_from_before_without_brokers_stays_open() -> None:
    """Somebody deleted the StatefulSet, to create another."""
    east = running()
    set_up(east, Unstated.SECURE)
    del east.kube.objects["StatefulSet", "east-brokers"]
    east.look(**HEALTHY)
    assert decided(east) == "Open"
    assert protocols(east) == OPENED


@pytest.mark.parametrize("lost", ["annotation", "status", "both"])
def test_a_secure_cluster_stays_secure(lost: str) -> None:
    """After `kubectl replace`, or a restore; and where the operator is set up otherwise since."""
    east = new()
    east.look()
    east.run(True, True, True)
    east.look(**HEALTHY, cluster_id="id")
    if lost != "status":
        without_annotation(east)
    if lost != "annotation":
        east.kube.objects["Cluster", "east"]["status"] = {}
    set_up(east, Unstated.OPEN)
    east.look(**HEALTHY, cluster_id="id")
    assert decided(east) == "Secure"
    assert protocols(east) == SECURED
    assert east.says("RollingUpdate") is None


def test_an_old_copy_of_the_cluster_decides_nothing() -> None:
    """The cache has the Cluster as it was before the annotation, and the StatefulSet has no copy of it yet."""
    east = new()
    east.look()
    stale = copy.deepcopy(east.kube.objects["Cluster", "east"])
    del stale["metadata"]["annotations"][UNSTATED]
    del east.kube.objects["StatefulSet", "east-brokers"]["metadata"]["annotations"][UNSTATED]
    reconcile_cluster(east.memory.services, decode_as(Cluster, stale))
    assert decided(east) == "Secure"
    assert protocols(east) == SECURED


def test_a_recreated_cluster_gets_no_decision_of_the_deleted() -> None:
    east = new()
    stale = copy.deepcopy(east.kube.objects["Cluster", "east"])
    east.kube.objects["Cluster", "east"]["metadata"]["uid"] = "u-other"
    with pytest.raises(KubeError, match="was deleted meanwhile"):
        reconcile_cluster(east.memory.services, decode_as(Cluster, stale))
    assert ("StatefulSet", "east-brokers") not in east.kube.objects
    assert decided(east) is None


def test_another_value_of_the_annotation_changes_nothing() -> None:
    east = new()
    east.metadata["annotations"] = {UNSTATED: "open"}
    east.look()
    assert east.says() == (
        "False",
        "InvalidSpec",
        f"metadata.annotations[{UNSTATED}]: 'open' is not allowed: expected Secure or Open; nothing was changed",
    )
    assert ("StatefulSet", "east-brokers") not in east.kube.objects


def test_a_secure_cluster_waits_for_the_right_to_secrets() -> None:
    east = new()
    east.kube.refused["Secret"] = KubeError(403, "Forbidden", "secrets is forbidden")
    east.look()
    status, reason, words = east.says() or ("", "", "")
    assert (status, reason) == ("False", "SecretNotReadable")
    assert "set operator.users: true" in words
    assert ("StatefulSet", "east-brokers") not in east.kube.objects
