"""A Cluster's objects, and the reading of its pods."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.config.config_keys import BROKER_KEYS
from millstream_harness.cluster_specs import (
    EXTERNAL,
    INTERNAL,
    THREE,
    cluster,
    container,
    pod_annotations,
    stateful_set,
)
from millstream_harness.java import SHORT_LIVED
from millstream_harness.tools import require
from millstream_operator.models import ManifestError
from millstream_operator.models.conditions import Reason
from millstream_operator.models.roll import RollingPod
from millstream_operator.reconcile.cluster.plan import broker_pods, refusal, why_not_ready
from millstream_operator.reconcile.cluster.rolling import restart_reasons
from millstream_operator.resources import cluster as build
from millstream_operator.resources.broker_config import (
    DYNAMIC_CONFIG,
    RESERVED_CONFIG,
    broker_config,
    properties,
)
from millstream_operator.resources.listeners import (
    Address,
)
from millstream_operator.resources.merge import merge
from millstream_operator.resources.volumes import (
    DEFAULT_CLASS,
    UserIds,
    VolumeOwnership,
    class_named,
    needs_init_container,
    with_owner,
)
from millstream_operator.resources.zookeeper import objects as zookeeper_objects

pytestmark = pytest.mark.process


def test_a_cluster_may_say_how_long_its_brokers_drain() -> None:
    found = stateful_set(cluster(config={"shutdown.drain.ms": "0"}))["spec"]["template"]["spec"]
    assert not [arg for arg in found["containers"][0]["args"] if "drain" in arg]


def test_the_operators_log_format_is_for_clusters_that_set_none() -> None:
    def pod(log_format: str, **config: str) -> tuple[list[str], dict[str, str]]:
        found = stateful_set(cluster(config=config), log_format=log_format)["spec"]["template"]
        return found["spec"]["containers"][0]["args"], found["metadata"]["annotations"]

    plain, wanted = pod("plain"), pod("json")
    assert wanted[0] == [*plain[0], "--override", "log.format=json"]
    assert pod("json", **{"log.format": "plain"})[0] == plain[0]
    for key in (build.CONFIG_HASH, build.SPEC_HASH):  # so it is an upgrade, not the Cluster's own change
        assert wanted[1][key] == plain[1][key]
    assert wanted[1][build.TEMPLATE_HASH] != plain[1][build.TEMPLATE_HASH]


def test_the_brokers_configuration() -> None:
    assert broker_config(cluster(config={"log.retention.hours": "2"})) == {
        "log.retention.hours": "2",
        "log.dirs": "/var/lib/millstream",
        "listeners": "INTERNAL://:9092,REPLICATION-9091://:9091",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,REPLICATION-9091:PLAINTEXT",
        "inter.broker.listener.name": "REPLICATION-9091",
        "http.listener": ":9404",
    }
    assert properties({"b": "two\nlines\\", "a": " x"}) == "a=\\ x\nb=two\\nlines\\\\\n"


def test_a_cluster_of_three_finds_its_zookeeper() -> None:
    connect = ",".join(f"east-zookeeper{n}.ns.svc:2181" for n in (1, 2, 3))
    assert broker_config(cluster(**THREE))["zookeeper.connect"] == connect
    elsewhere = cluster(brokers={"replicas": 3}, zookeeper={"connect": "zk:2181/east"})
    assert broker_config(elsewhere)["zookeeper.connect"] == "zk:2181/east"
    assert zookeeper_objects(elsewhere, image="zk:1", pull_policy="Never") == []


def test_the_zookeeper_ensemble() -> None:
    headless, *_, budget, ensemble = zookeeper_objects(
        cluster(**{**THREE, "brokers": {"replicas": 3, "storage": {"deletionPolicy": "Delete"}}}),
        image="zk:1",
        pull_policy="Never",
    )
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["metadata"]["name"] == ensemble["spec"]["serviceName"]
    assert budget["spec"]["maxUnavailable"] == 1
    spec, pod = ensemble["spec"], ensemble["spec"]["template"]["spec"]
    assert (spec["replicas"], spec["ordinals"]) == (3, {"start": 1})
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert spec["selector"]["matchLabels"]["app.kubernetes.io/component"] == "zookeeper"
    environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert environment["ZOO_SERVERS"].split()[2] == "server.3=east-zookeeper3.ns.svc:2888:3888;2181"
    assert pod["containers"][0]["image"] == "zk:1"


def test_each_zookeeper_server_has_an_address_that_stays() -> None:
    _, *services, _, _ = zookeeper_objects(cluster(**THREE), image="zk:1", pull_policy="Never")
    assert [one["metadata"]["name"] for one in services] == [f"east-zookeeper{n}" for n in (1, 2, 3)]
    for n, one in enumerate(services, 1):
        spec = one["spec"]
        assert spec["type"] == "ClusterIP"
        assert "clusterIP" not in spec
        # a server becomes ready only once it serves, for which it needs its peers
        assert spec["publishNotReadyAddresses"] is True
        assert spec["selector"]["statefulset.kubernetes.io/pod-name"] == f"east-zookeeper-{n}"
        assert {port["port"] for port in spec["ports"]} == {2181, 2888, 3888}


def test_what_the_operator_sets_live_is_what_brokers_take_live() -> None:
    # of single brokers: throttles during a reassignment, which Kafka's own tool sets, and listeners' certificates
    single = ("leader.replication.throttled.", "follower.replication.throttled.", "ssl.", "sasl.")
    dynamic = {name for name, key in BROKER_KEYS.items() if key.dynamic and not name.startswith(single)}
    assert dynamic == DYNAMIC_CONFIG
    assert not DYNAMIC_CONFIG & RESERVED_CONFIG


def test_the_brokers_own_files() -> None:
    wanted = cluster(**THREE, listeners=[INTERNAL, EXTERNAL])
    addresses = {
        ("out-side", 0): Address(None, 30094),
        ("out-side", 1): Address("lb-1.example.com", 9094),
    }
    data = build.config_map(wanted, 2, addresses, {"node-1": "a", "node-2": ""})["data"]
    assert sorted(data) == [
        "broker-0.properties",
        "broker-1.properties",
        "racks.properties",
        "server.properties",
    ]
    assert data["broker-0.properties"] == (
        "advertised.listeners=REPLICATION-9091://${env:POD_IP}:9091,INTERNAL://east-broker0.ns.svc:9092,"
        "OUT_SIDE://${env:HOST_IP}:30094\n"
    )
    assert data["broker-1.properties"].endswith(",OUT_SIDE://lb-1.example.com:9094\n")
    assert data["racks.properties"] == "node-1=a\nnode-2=\n"
    assert "racks.properties" not in build.config_map(wanted, 2, addresses, None)["data"]


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
    assert broker["command"] == [
        "millstream-broker",
        "/etc/millstream/server.properties",
        "/etc/millstream/broker-$(POD_INDEX).properties",
    ]
    assert broker["args"] == ["--override", "broker.id=$(POD_INDEX)", "--override", "shutdown.drain.ms=5000"]
    assert (spec["updateStrategy"], spec["podManagementPolicy"]) == ({"type": "OnDelete"}, "Parallel")
    with_racks = container(stateful_set(cluster(), racks=True))["args"]
    assert with_racks[3] == "broker.rack=${file:/etc/millstream/racks.properties:$(NODE_NAME)}"
    assert broker["securityContext"]["readOnlyRootFilesystem"] is True
    json.dumps(manifest)


def test_no_pod_names_a_user_where_the_platform_assigns_them() -> None:
    wanted = cluster(**THREE)
    *_, ensemble = zookeeper_objects(wanted, image="z", pull_policy="Never", user_ids=UserIds.ASSIGNED)
    for manifest in (stateful_set(wanted, user_ids=UserIds.ASSIGNED), ensemble):
        assert manifest["spec"]["template"]["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_zookeeper_writes_its_configuration_as_whatever_user_it_is(tmp_path: Path) -> None:
    fixed, assigned = (
        zookeeper_objects(cluster(**THREE), image="z", pull_policy="Never", user_ids=ids)[-1]
        for ids in (UserIds.FIXED, UserIds.ASSIGNED)
    )
    assert "volumes" not in fixed["spec"]["template"]["spec"]
    pod = assigned["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "conf", "emptyDir": {}}]
    assert {"name": "conf", "mountPath": "/conf"} in pod["containers"][0]["volumeMounts"]
    # the init container copies the image's files
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/logback.xml").write_text("<configuration/>")
    (tmp_path / "own-conf").mkdir()
    shell, option, script = pod["initContainers"][0]["command"]
    for folder in ("/conf", "/own-conf"):
        script = script.replace(f" {folder}/", f" {tmp_path}{folder}/")
    subprocess.run([shell, option, script], cwd=tmp_path, check=True)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert {"own-conf/logback.xml", "data/java.security", "datalog"} <= made


def test_a_deletion_policy_and_the_size_of_what_is_there() -> None:
    wanted = cluster(brokers={"storage": {"size": "20Gi", "deletionPolicy": "Delete"}})
    spec = stateful_set(wanted, claim_size="10Gi")["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "10Gi"


OTHER_NODE = {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        ({}, {}, ()),
        ({}, {"config": {"log.retention.hours": "2"}}, ("ConfigurationChanged",)),
        ({}, {"config": {"log.retention.ms": "2"}}, ()),  # applied live
        ({"config": {"log.retention.ms": "2"}}, {"config": {"log.retention.ms": "3"}}, ()),
        ({}, {"listeners": [INTERNAL, EXTERNAL]}, ("ListenersChanged",)),
        ({}, {"image": "broker:2"}, ("PodTemplateChanged",)),
        ({}, {"brokers": OTHER_NODE}, ("PodTemplateChanged",)),
        (THREE, {**THREE, "brokers": {"replicas": 4}}, ()),
        (THREE, {**THREE, "rebalance": "Automatic"}, ()),
    ],
)
def test_what_restarts_brokers(
    before: dict[str, Any], after: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    assert (
        restart_reasons(0, pod_annotations(cluster(**before)), pod_annotations(cluster(**after))) == reasons
    )


def test_pod_additions() -> None:
    template = {
        "metadata": {
            "labels": {"team": "x", "app.kubernetes.io/part-of": "shop"},
            "annotations": {"a": "b", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        },
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "disk", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"x": 1}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "high",
            "terminationGracePeriodSeconds": 90,
            "containers": [{"name": "broker", "env": [{"name": "EXTRA", "value": "1"}]}],
        },
    }
    manifest = stateful_set(cluster(brokers={"template": template}))
    pod = manifest["spec"]["template"]
    plain = stateful_set(cluster())["spec"]["template"]
    assert pod["metadata"]["labels"] == plain["metadata"]["labels"] | template["metadata"]["labels"]
    assert pod["metadata"]["annotations"].items() >= template["metadata"]["annotations"].items()
    assert build.CONFIG_HASH in pod["metadata"]["annotations"]
    for field, value in template["spec"].items():
        if field not in ("containers", "affinity", "topologySpreadConstraints"):
            assert pod["spec"][field] == value
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    own = {"millstream.dev/cluster": "east", "app.kubernetes.io/component": "broker"}
    assert spread.pop("labelSelector") == {"matchLabels": own}, "Kubernetes would count no pods"
    assert [spread] == template["spec"]["topologySpreadConstraints"]
    assert pod["spec"]["affinity"] == plain["spec"]["affinity"] | {"nodeAffinity": {"x": 1}}
    assert [e["name"] for e in container(manifest)["env"]] == [
        "POD_INDEX",
        "NODE_NAME",
        "HOST_IP",
        "POD_IP",
        "EXTRA",
    ]
    assert {key: value for key, value in container(manifest).items() if key != "env"} == {
        key: value for key, value in container(stateful_set(cluster())).items() if key != "env"
    }


def test_a_template_cannot_take_the_labels_that_the_operator_sets() -> None:
    pod = stateful_set(cluster())["spec"]["template"]
    for key in pod["metadata"]["labels"]:
        with pytest.raises(ManifestError, match="are reserved"):
            cluster(brokers={"template": {"metadata": {"labels": {key: "mine"}}}})
    for key in pod["metadata"]["annotations"]:
        with pytest.raises(ManifestError, match="are reserved"):
            cluster(brokers={"template": {"metadata": {"annotations": {key: "mine"}}}})


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
    pod = {"initContainers": [{"name": "other"}]}
    first, second = with_owner(pod, volume="data", user=1000, image="i", pull_policy="Never")[
        "initContainers"
    ]
    assert (first["name"], second["name"]) == ("volume-owner", "other")
    (first,) = stateful_set(cluster(image="mine"), owner=True)["spec"]["template"]["spec"]["initContainers"]
    assert first["image"] == "broker:1", "what is root runs no code of a user's"
    assert first["command"] == ["chown", "1000:1000", "/volume"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert "initContainers" not in stateful_set(cluster())["spec"]["template"]["spec"]


def test_merge_replaces_removes_and_keeps_its_inputs() -> None:
    base = {"a": 1, "args": ["x"], "env": [{"name": "v", "value": "1"}], "b": {"c": 1}}
    override = {
        "a": None,
        "args": ["y"],
        "env": [{"name": "v", "value": None, "valueFrom": {}}, {"name": "w"}],
        "b": {"d": 2},
    }
    merged = merge(base, override)
    assert merged == {
        "args": ["y"],
        "env": [{"name": "v", "valueFrom": {}}, {"name": "w"}],
        "b": {"c": 1, "d": 2},
    }
    assert base["env"] == [{"name": "v", "value": "1"}]


def test_what_is_refused() -> None:
    problem = refusal(cluster(config={"log.dirs": "/x"}))
    assert problem is not None
    assert problem.reason is Reason.INVALID_CONFIG
    assert problem.message.startswith("spec.config[log.dirs]: not allowed")


def test_what_is_not_refused() -> None:
    assert refusal(cluster(config={"log.retention.hours": "1"})) is None


def test_the_pods_of_a_roll() -> None:
    live = stateful_set(cluster(**THREE))
    made = live["spec"]["template"]["metadata"]["annotations"]

    def pod(number: int, hashes: dict[str, str], *, ready: bool, **metadata: Any) -> dict[str, Any]:
        return {
            "metadata": {
                "name": f"east-brokers-{number}",
                "uid": f"u{number}",
                "annotations": hashes,
                **metadata,
            },
            "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
        }

    old = {**made, build.CONFIG_HASH: "old"}
    pods = [
        pod(2, old, ready=True, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod(10, made, ready=True),
        pod(1, old, ready=False),
        pod(0, old, ready=True),
    ]
    changed = ("ConfigurationChanged",)
    assert broker_pods(live, pods) == [
        RollingPod(0, "east-brokers-0", True, changed, uid="u0"),
        RollingPod(1, "east-brokers-1", False, changed, uid="u1"),
        RollingPod(2, "east-brokers-2", False, uid="u2"),  # terminating already
        RollingPod(10, "east-brokers-10", True, uid="u10"),
    ]


def test_why_brokers_are_not_ready() -> None:
    def pod(**status: Any) -> dict[str, Any]:
        return {"metadata": {"name": "east-brokers-0"}, "status": status}

    ended = {"exitCode": 1, "message": "one line\nanother\nlog.retention.hour: no such configuration key\n"}
    failed = pod(containerStatuses=[{"ready": False, "state": {}, "lastState": {"terminated": ended}}])
    problem = why_not_ready([failed], 0, 1)
    assert (problem.reason, problem.message) == (
        Reason.BROKER_FAILED,
        "east-brokers-0: log.retention.hour: no such configuration key",
    )
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    problem = why_not_ready([pod(containerStatuses=[{"ready": False, "state": {"waiting": waiting}}])], 0, 1)
    assert (problem.reason, problem.message) == (
        Reason.BROKER_FAILED,
        "east-brokers-0: ErrImagePull: not found",
    )
    silent = {"exitCode": 137, "reason": "OOMKilled"}
    failed = pod(containerStatuses=[{"ready": False, "state": {"terminated": silent}}])
    assert why_not_ready([failed], 0, 1).message == "east-brokers-0: exit status 137, OOMKilled"
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
    }
    new_claim = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "no claim"}
    unready = {"type": "Ready", "status": "False", "message": "containers are not ready"}
    assert why_not_ready([pod(conditions=[unready])], 0, 1).message == "0 of 1 brokers are ready"
    assert why_not_ready([pod(conditions=[unscheduled])], 0, 1).message == "east-brokers-0: 0/1 nodes"
    assert why_not_ready([pod(conditions=[new_claim])], 0, 1).message == "0 of 1 brokers are ready"
    assert why_not_ready([], 0, 1).message == "0 of 1 brokers are ready"


JAVA_PROGRAM = """
import java.net.InetAddress;
class Addresses {
    public static void main(String[] arguments) throws Exception {
        var policy = Class.forName("sun.net.InetAddressCachePolicy");
        for (var name : new String[] {"get", "getNegative"}) {
            System.out.println(name + " " + policy.getMethod(name).invoke(null));
        }
    }
}
"""


def test_java_keeps_the_addresses_of_zookeeper_servers_no_longer_than_a_second(tmp_path: Path) -> None:
    """The init container's file, read by Java as the server does."""
    ensemble = zookeeper_objects(cluster(**THREE), image="zk:1", pull_policy="Never")[-1]
    (prepare,) = ensemble["spec"]["template"]["spec"]["initContainers"]
    variables = {one["name"]: one["value"] for one in prepare["env"]}
    (mount,) = prepare["volumeMounts"]
    assert prepare["workingDir"] == mount["mountPath"]
    subprocess.run(prepare["command"], cwd=tmp_path, env={**os.environ, **variables}, check=True)
    flags = {one["name"]: one.get("value", "") for one in container(ensemble)["env"]}["JAVA_TOOL_OPTIONS"]
    folder = {one["mountPath"]: one["subPath"] for one in container(ensemble)["volumeMounts"]}["/data"]
    (tmp_path / "Addresses.java").write_text(JAVA_PROGRAM)
    command = [require("java"), "--add-opens=java.base/sun.net=ALL-UNNAMED", *SHORT_LIVED]
    command.append(str(tmp_path / "Addresses.java"))
    options = {"JAVA_TOOL_OPTIONS": flags.replace("=/data/", f"={tmp_path}/{folder}/")}
    answer = subprocess.run(
        command, env={**os.environ, **options}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == ["get 1", "getNegative 0"]
