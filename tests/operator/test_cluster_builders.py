"""A Cluster's objects, the reading of its pods, and what counts as converged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream_operator.conditions import Reason
from millstream_operator.models import API_VERSION, Cluster, decode
from millstream_operator.reconcile.cluster import listener_status, ready_brokers, refusal, why_not_ready
from millstream_operator.reconcile.objects import APPLIED, contains, with_hash
from millstream_operator.resources import cluster as build
from millstream_operator.resources.merge import merge
from millstream_operator.resources.volumes import (
    DEFAULT_CLASS,
    VolumeOwnership,
    class_named,
    needs_init_container,
)


def cluster(**spec: Any) -> Cluster:
    document = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": "east", "namespace": "ns", "uid": "u-1", "generation": 1},
        "spec": spec,
    }
    decoded = decode(document)
    assert isinstance(decoded, Cluster)
    return decoded


def stateful_set(wanted: Cluster, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"image": "broker:1", "pull_policy": "IfNotPresent", "node_ports": {}, **more}
    return build.stateful_set(wanted, **options)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_brokers_configuration() -> None:
    config = build.broker_config(cluster(config={"log.retention.hours": "2"}))
    assert config == {
        "log.retention.hours": "2",
        "log.dirs": "/var/lib/millstream",
        "listeners": "INTERNAL://0.0.0.0:9092",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "http.listener": "0.0.0.0:9404",
    }
    assert build.properties({"b": "two\nlines\\", "a": " x"}) == "a=\\ x\nb=two\\nlines\\\\\n"


def test_the_stateful_set() -> None:
    manifest = stateful_set(cluster(brokers={"storage": {"size": "20Gi", "className": "fast"}}))
    spec, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    assert manifest["metadata"]["name"] == "east-brokers"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (1000, 1000)
    broker = container(manifest)
    assert broker["image"] == "broker:1"
    assert broker["command"] == ["millstream-broker", "/etc/millstream/server.properties"]
    assert "advertised.listeners=INTERNAL://$(POD_NAME).east-brokers.ns.svc:9092" in broker["args"]
    assert broker["securityContext"]["readOnlyRootFilesystem"] is True
    json.dumps(manifest)


def test_a_deletion_policy_and_the_size_of_what_is_there() -> None:
    wanted = cluster(brokers={"storage": {"size": "20Gi", "deletionPolicy": "Delete"}})
    spec = stateful_set(wanted, claim_size="10Gi")["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "10Gi"


def test_changed_configuration_restarts_brokers_and_the_same_does_not() -> None:
    def annotations(wanted: Cluster) -> dict[str, str]:
        found: dict[str, str] = stateful_set(wanted)["spec"]["template"]["metadata"]["annotations"]
        return found

    assert annotations(cluster()) == annotations(cluster())
    assert annotations(cluster()) != annotations(cluster(config={"log.retention.hours": "2"}))


def test_a_node_port_listener() -> None:
    listeners = [
        {"name": "internal", "type": "Internal", "port": 9092},
        {"name": "out-side", "type": "NodePort", "port": 9094, "nodePort": 30094},
    ]
    wanted = cluster(listeners=listeners)
    (service,) = build.external_services(wanted)
    assert service["metadata"]["name"] == "east-out-side-0"
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "east-brokers-0"
    assert service["spec"]["ports"] == [
        {"name": "kafka", "port": 9094, "targetPort": 9094, "nodePort": 30094}
    ]
    assert build.broker_config(wanted)["listeners"] == "INTERNAL://0.0.0.0:9092,OUT_SIDE://0.0.0.0:9094"
    args = container(stateful_set(wanted, node_ports={"out-side": 30094}))["args"]
    assert args[-1].endswith(",OUT_SIDE://$(HOST_IP):30094")
    pods = [{"status": {"hostIP": "10.0.0.7"}}, {"status": {}}]
    assert [s.bootstrap for s in listener_status({"out-side": 30094}, pods)] == ["10.0.0.7:30094"]
    assert listener_status({"out-side": 30094}, []) == ()


def test_pod_overrides() -> None:
    template = {
        "metadata": {"labels": {"team": "x"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {"name": "broker", "env": [{"name": "EXTRA", "value": "1"}]},
                {"name": "sidecar", "image": "s"},
            ],
        },
    }
    manifest = stateful_set(cluster(brokers={"template": template}))
    pod = manifest["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["annotations"]["a"] == "b"
    assert build.CONFIG_HASH in pod["metadata"]["annotations"]
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert [c["name"] for c in pod["spec"]["containers"]] == ["broker", "sidecar"]
    assert [e["name"] for e in container(manifest)["env"]] == ["POD_INDEX", "POD_NAME", "HOST_IP", "EXTRA"]


STORAGE_CLASSES = [
    {"metadata": {"name": "fast"}, "provisioner": "ebs.csi.aws.com"},
    {
        "metadata": {"name": "host", "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": "kubernetes.io/host-path",
    },
]


@pytest.mark.parametrize(
    ("how", "name", "needed"),
    [
        (VolumeOwnership.AUTO, None, True),
        (VolumeOwnership.AUTO, "fast", False),
        (VolumeOwnership.AUTO, "unknown", False),
        (VolumeOwnership.INIT_CONTAINER, "fast", True),
        (VolumeOwnership.FS_GROUP, "host", False),
    ],
)
def test_which_volumes_need_an_owner(how: VolumeOwnership, name: str | None, needed: bool) -> None:
    assert needs_init_container(how, class_named(STORAGE_CLASSES, name)) is needed


def test_the_owner_comes_before_all_others() -> None:
    template = {"spec": {"initContainers": [{"name": "mine"}]}}
    pod = stateful_set(cluster(brokers={"template": template}), owner=True)["spec"]["template"]["spec"]
    first, second = pod["initContainers"]
    assert (first["name"], second["name"]) == ("volume-owner", "mine")
    assert first["command"] == ["chown", "1000:1000", "/volume"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert "initContainers" not in stateful_set(cluster())["spec"]["template"]["spec"]


def test_merge_replaces_removes_and_keeps_its_inputs() -> None:
    base = {"a": 1, "args": ["x"], "volumes": [{"name": "v", "emptyDir": {}}], "b": {"c": 1}}
    override = {
        "a": None,
        "args": ["y"],
        "volumes": [{"name": "v", "emptyDir": None, "secret": {}}],
        "b": {"d": 2},
    }
    merged = merge(base, override)
    assert merged == {"args": ["y"], "volumes": [{"name": "v", "secret": {}}], "b": {"c": 1, "d": 2}}
    assert base["volumes"] == [{"name": "v", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"brokers": {"replicas": 3}},
            Reason.REPLICATION_NOT_AVAILABLE,
            "spec.brokers.replicas: 3 is not allowed",
        ),
        ({"zookeeper": {"replicas": 1}}, Reason.ZOOKEEPER_NOT_AVAILABLE, "spec.zookeeper"),
        ({"config": {"log.dirs": "/x"}}, Reason.INVALID_CONFIG, "spec.config[log.dirs]: not allowed"),
    ],
)
def test_what_is_refused(spec: dict[str, Any], reason: Reason, words: str) -> None:
    problem = refusal(cluster(**spec))
    assert problem is not None
    assert problem.reason is reason
    assert problem.message.startswith(words)


def test_what_is_not_refused() -> None:
    assert refusal(cluster(config={"log.retention.hours": "1"})) is None


def status_of(generation: int = 1, **status: int) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "status": status}


@pytest.mark.parametrize(
    ("live", "ready"),
    [
        (None, 0),
        (status_of(), 0),
        (status_of(observedGeneration=1, readyReplicas=1, updatedReplicas=1), 1),
        (status_of(observedGeneration=1, readyReplicas=1), 0),
        (status_of(2, observedGeneration=1, readyReplicas=1, updatedReplicas=1), 0),
    ],
    ids=["none", "new", "ready", "old pod still runs", "change not seen"],
)
def test_ready_brokers(live: dict[str, Any] | None, ready: int) -> None:
    assert ready_brokers(live, 1) == ready


def test_why_brokers_are_not_ready() -> None:
    def pod(**status: Any) -> dict[str, Any]:
        return {"metadata": {"name": "east-brokers-0"}, "status": status}

    ended = {"exitCode": 1, "message": "log line\nlog.retention.hour: no such configuration key\n"}
    failed = pod(containerStatuses=[{"ready": False, "state": {}, "lastState": {"terminated": ended}}])
    problem = why_not_ready([failed], 0, 1)
    assert (problem.reason, problem.message) == (
        Reason.BROKER_FAILED,
        "east-brokers-0: log.retention.hour: no such configuration key",
    )
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    problem = why_not_ready([pod(containerStatuses=[{"ready": False, "state": {"waiting": waiting}}])], 0, 1)
    assert (problem.reason, problem.message) == (
        Reason.BROKERS_STARTING,
        "east-brokers-0: ErrImagePull: not found",
    )
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    assert "0/1 nodes" in why_not_ready([pod(conditions=[unscheduled])], 0, 1).message
    assert why_not_ready([], 0, 1).message == "0 of 1 brokers are ready"


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": {}}, True),
        ({"cpu": "500m"}, {"cpu": "0.5"}, True),
        ({"x": True}, {"x": 1}, True),
        ({"x": "1"}, {"x": "2"}, False),
        ({"l": [{"name": "a", "x": 1, "y": 1}, {"name": "b"}]}, {"l": [{"name": "a", "x": 1}]}, True),
        ({"l": [{"name": "a"}]}, {"l": [{"name": "b"}]}, False),
        ({"l": ["a", "b"]}, {"l": ["a"]}, False),
        ({"l": []}, {"l": ["a"]}, False),
    ],
)
def test_contains(live: object, wanted: object, same: bool) -> None:
    assert contains(live, wanted) is same


def test_a_field_that_we_no_longer_set_changes_the_hash() -> None:
    base = {"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2}}
    live = with_hash(base)
    assert contains(live, with_hash(base))
    assert not contains(live, with_hash({"metadata": {"name": "x"}, "spec": {"a": 1}}))
    assert APPLIED in live["metadata"]["annotations"]
