"""`kubectl apply` of invalid resources: the API server names the field, the value, and what is allowed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_harness.kube import CommandFailed, Namespace, run, until
from millstream_harness.loads import allowed_conf
from millstream_harness.scenario import unique
from millstream_operator.models import Cluster
from millstream_operator.resources.cluster import stateful_set
from millstream_operator.validation.admission import decode

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
REF = {"clusterRef": {"name": "default"}}
CERTIFICATE = {"secretName": "zookeeper-ca", "certificate": "ca.crt"}
LOAD = {**REF, "topics": ["t"], "value": {"format": "Binary"}, "output": {"path": "/lake/t"}}
MIRROR = {
    "sources": [{"name": "west", "bootstrap": "west:9092"}],
    "target": {"clusterRef": {"name": "east"}},
    "topics": {"include": ["orders.*"]},
}


def manifest(kind: str, spec: dict[str, Any], name: str = "x") -> dict[str, Any]:
    return {"apiVersion": "millstream.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def template(**fields: Any) -> dict[str, Any]:
    return {"brokers": {"template": fields}}


def outside(**fields: Any) -> dict[str, Any]:
    """A Cluster with a listener for clients outside Kubernetes."""
    inside = {"name": "internal", "type": "Internal", "port": 9092}
    return {
        "listeners": [inside, {"name": "out", "type": "LoadBalancer", "port": 9094, **fields}],
    }


HOST = {"name": "c", "image": "i", "securityContext": {"privileged": True}}
PLAIN = {"allowPlaintext": True}
WORKLOAD = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "theirs"}}


BAD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("Topic", {**REF, "partitons": 3}, ('unknown field "spec.partitons"',)),
    ("Topic", {**REF, "partitions": "six"}, ("spec.partitions", "must be of type integer")),
    ("Topic", {**REF, "partitions": 0}, ("spec.partitions", "greater than or equal to 1")),
    ("Topic", {**REF, "config": {"retention.ms": 1}}, ("spec.config.retention.ms", "must be of type string")),
    ("Topic", {"partitions": 1}, ("spec.clusterRef", "Required value")),
    ("Topic", {**REF, "topicName": "a/b"}, ("spec.topicName", "should match")),
    ("Topic", {**REF, "topicName": ".."}, ("topicName: . and .. are not allowed",)),
    ("Topic", {**REF, "deletionPolicy": "Drop"}, ('supported values: "Retain", "Delete"',)),
    (
        "Cluster",
        {"maintenance": {"windows": [{"start": "02:00", "end": "02:00"}]}},
        ("windows: start and end must differ",),
    ),
    ("Cluster", {"maintenance": {"windows": [{"start": "2:00", "end": "24:00"}]}}, ("should match",)),
    ("Cluster", {"zookeeper": {}}, ("exactly one of replicas and connect is required",)),
    (
        "Cluster",
        {"zookeeper": {"replicas": 1, "tls": {"trustedCertificates": [CERTIFICATE]}}},
        ("zookeeper: authentication and tls are for connect only",),
    ),
    (
        "Cluster",
        {"zookeeper": {"connect": "zk:2181", "tls": {"trustedCertificates": []}}},
        ("should have at least 1 items",),
    ),
    (
        "Cluster",
        {"zookeeper": {"connect": "zk:2181", "authentication": {"type": "Kerberos"}}},
        ('supported values: "DigestMd5"', "username: Required value", "passwordSecret: Required value"),
    ),
    ("Cluster", {"config": {"a\nlog.dirs": "/tmp"}}, ("config: keys consist of letters",)),
    ("Cluster", {"config": {"log.dirs = /tmp #": ""}}, ("config: keys consist of letters",)),
    ("Cluster", {"brokers": {"replicas": 3}}, ("zookeeper: required with more than one broker",)),
    ("Cluster", {"brokers": {"storage": {"size": "0"}}}, ("a size greater than 0 is required",)),
    (
        "Cluster",
        {"listeners": [{"name": "a", "type": "NodePort", "port": 9094}]},
        ("exactly one of type Internal",),
    ),
    ("Cluster", {"listeners": [{"name": "a", "type": "Ingress", "port": 9094}]}, ("supported values",)),
    *(
        ("Cluster", template(spec=spec), (f'unknown field "spec.brokers.template.spec.{field}"',))
        for field, spec in {
            "hostPID": {"hostPID": True},
            "securityContext": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}},
            "serviceAccountName": {"serviceAccountName": "admin"},
            "volumes[0].hostPath": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
            "volumes[0].secret": {"volumes": [{"name": "s", "secret": {"secretName": "s"}}]},
            "initContainers": {"initContainers": [{"name": "x", "image": "y"}]},
            "containers[0].securityContext": {
                "containers": [{"name": "broker", "securityContext": {"privileged": True}}]
            },
            "containers[0].env[0].valueFrom": {
                "containers": [
                    {"name": "broker", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}
                ]
            },
        }.items()
    ),
    ("Cluster", template(spec={"containers": [{"name": "sidecar"}]}), ('supported values: "broker"',)),
    (
        "Cluster",
        template(spec={"containers": [{"name": "broker", "env": [{"name": "POD_INDEX", "value": "0"}]}]}),
        ("env: HOST_IP, NODE_NAME, POD_INDEX and POD_IP are set by the operator",),
    ),
    (
        "Cluster",
        template(spec={"priorityClassName": "system-node-critical"}),
        ("the classes system-… belong to Kubernetes",),
    ),
    ("Cluster", template(metadata={"labels": {"millstream.dev/cluster": "b"}}), ("labels: keys of",)),
    (
        "Cluster",
        template(
            metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/b": "unconfined"}}
        ),
        ("annotations: keys of",),
    ),
    ("ConsumerGroup", {**REF, "topics": [".."]}, ("topics: . and .. are not allowed",)),
    ("Cluster", outside(), ("needs allowPlaintext: true: without TLS, anyone who reaches it",)),
    ("Cluster", outside(type="NodePort", allowPlaintext=False), ("needs allowPlaintext: true",)),
    ("Cluster", outside(tls="Disabled"), ("needs allowPlaintext: true",)),
    ("Cluster", outside(**PLAIN, authentication={"type": "Tls"}), ("of type Tls needs tls: Enabled",)),
    (
        "Cluster",
        {
            **outside(**PLAIN, authentication={"type": "None"}),
            "authorization": {"type": "Simple"},
        },
        ("authorization: needs authentication in every external listener",),
    ),
    (
        "Cluster",
        {"listenerDefaults": {"authentication": {"type": "Tls"}}},
        ("spec.listenerDefaults.authentication.type", '"ScramSha512", "None"'),
    ),
    (
        "Cluster",
        {"certificateAuthority": {"validityDays": 41}},
        ("overlapDays may be at most a sixth of validityDays",),
    ),
    (
        "Cluster",
        {"certificateAuthority": {"secretName": "mine", "rotate": {"requestId": "a"}}},
        ("rotate replaces a generated authority",),
    ),
    (
        "Cluster",
        outside(**PLAIN, type="NodePort", loadBalancerSourceRanges=["192.0.2.0/24"]),
        ("loadBalancerSourceRanges are allowed with type LoadBalancer only",),
    ),
    (
        "Cluster",
        outside(**PLAIN, bootstrap={"nodePort": 31000}),
        ("bootstrap.nodePort is allowed with type",),
    ),
    ("Cluster", outside(**PLAIN, advertisedHost="a:9094"), ("advertisedHost", "should match")),
    ("Cluster", outside(**PLAIN, annotations={"millstream.dev/applied": "x"}), ("annotations: keys of",)),
    ("Cluster", outside(**PLAIN, networkPolicyPeers=[{}]), ("either ipBlock or podSelector",)),
    (
        "Cluster",
        {"listeners": [{"name": "internal", "type": "Internal", "port": 9092, "advertisedHost": "x"}]},
        ("are allowed with type NodePort and LoadBalancer only",),
    ),
    (
        "Cluster",
        {"zookeeper": {"replicas": 1, "template": {"spec": {"hostNetwork": True}}}},
        ('unknown field "spec.zookeeper.template.spec.hostNetwork"',),
    ),
    (
        "Cluster",
        {"zookeeper": {"replicas": 1, "template": {"spec": {"containers": [{"name": "broker"}]}}}},
        ('supported values: "zookeeper"',),
    ),
    (
        "MirrorMaker",
        {**MIRROR, "template": {"spec": {"volumes": [CLAIM]}}},
        ('unknown field "spec.template.spec.volumes[0].persistentVolumeClaim"',),
    ),
    (
        "MirrorMaker",
        {**MIRROR, "template": {"spec": {"volumes": [{"name": "v"}]}}},
        ("exactly one of emptyDir and configMap is required",),
    ),
    (
        "MirrorMaker",
        {
            **MIRROR,
            "template": {
                "spec": {
                    "containers": [
                        {"name": "mirror", "volumeMounts": [{"name": "tmp", "mountPath": "/mnt/x"}]}
                    ]
                }
            },
        },
        ("a mount must name one of spec.volumes",),
    ),
    (
        "BatchLoad",
        {
            **LOAD,
            "spark": {
                "executor": {
                    "template": {
                        "spec": {
                            "containers": [
                                {"name": "executor", "env": [{"name": "LD_PRELOAD", "value": "/x"}]}
                            ]
                        }
                    }
                }
            },
        },
        ("env: Spark's pods may have AWS_DEFAULT_REGION",),
    ),
    (
        "BatchLoad",
        {**LOAD, "spark": {"driver": {"resources": {"limits": {"memory": "1Gi"}}}}},
        ("resources: memory follows from the Java process",),
    ),
    ("ConsumerGroup", {**REF, "reset": {"requestId": "r", "to": "Shift"}}, ("reset: shift is required",)),
    (
        "ConsumerGroup",
        {**REF, "topics": ["t"], "workload": {"template": {"spec": {"containers": []}}}},
        ("spec.workload.template.spec.containers", "should have at least 1 items"),
    ),
    (
        "ConsumerGroup",
        {**REF, "topics": ["t"], "workload": {"template": {"spec": {"containers": [HOST]}}}},
        ('unknown field "spec.workload.template.spec.containers[0].securityContext"',),
    ),
    *(
        ("ConsumerGroup", {**REF, "topics": ["t"], "workload": {**WORKLOAD, **more}}, (words,))
        for more, words in (
            ({"scaling": {"min": 3, "max": 2, "targetLag": 1}}, "scaling: min must not be above max"),
            ({"scaling": {"max": 0, "targetLag": 1}}, "greater than or equal to 1"),
            (
                {"replicas": 1, "scaling": {"max": 2, "targetLag": 1}},
                "replicas are not allowed with scaling, which chooses them",
            ),
        )
    ),
    ("ConsumerGroup", {**REF, "startAt": "Earliest"}, ("startAt: list its topics in topics",)),
    ("ConsumerGroup", {**REF, "maxLag": {}}, ("spec.maxLag",)),
    (
        "MirrorMaker",
        {**MIRROR, "target": {}},
        ("target: exactly one of clusterRef and bootstrap is required",),
    ),
    ("MirrorMaker", {**MIRROR, "mode": "Copy"}, ("spec.mode",)),
    ("BatchLoad", {**LOAD, "value": {"format": "JSON"}}, ("schema is required with formats JSON and CSV",)),
    ("BatchLoad", {**LOAD, "from": {"position": "Offsets"}}, ("offsets are required with position Offsets",)),
    ("BatchLoad", {**LOAD, "spark": {"conf": {"spark.jars": "x"}}}, ("conf: a key is not allowed",)),
    (
        "BatchLoad",
        {**LOAD, "output": {"path": "s3a://b/x", "volumeClaimName": "v"}},
        ("path must be a folder",),
    ),
    (
        "BatchLoad",
        {**LOAD, "output": {"path": "/lake/t", "format": "Iceberg"}},
        ("table is required with format Iceberg",),
    ),
    (
        "BatchLoad",
        {**LOAD, "output": {"path": "s3a://b/x", "format": "Iceberg", "table": "a.b"}},
        ("catalog type JDBC or REST is required",),
    ),
]


@pytest.mark.parametrize(
    ("kind", "spec", "words"), BAD, ids=[f"{kind}-{words[0][:40]}" for kind, _, words in BAD]
)
def test_refused(
    module_namespace: Namespace, kind: str, spec: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(CommandFailed) as error:
        module_namespace.apply(manifest(kind, spec))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", ["1east", "a.b", "a" * 41])
def test_services_can_be_named_after_a_cluster(module_namespace: Namespace, name: str) -> None:
    with pytest.raises(
        CommandFailed, match=r"metadata\.name: .* are allowed, since .*[sS]ervices are named after it"
    ):
        module_namespace.apply(manifest("Cluster", {}, name))
    module_namespace.apply(manifest("Cluster", {}, "a" * 40))


def test_what_a_template_may_not_have_never_reaches_the_operator(namespace: Namespace) -> None:
    """A client without strict validation gets a warning, and the field is not stored."""
    spec = {"hostPID": True, "nodeSelector": {"disk": "ssd"}, "serviceAccountName": "admin"}
    document = json.dumps(manifest("Cluster", template(spec=spec)))
    apply = ("kubectl", "-n", namespace.name, "apply", "--validate=warn", "-f", "-")
    done = subprocess.run(apply, input=document, capture_output=True, text=True, timeout=60, check=True)
    assert 'unknown field "spec.brokers.template.spec.hostPID"' in done.stderr
    stored = namespace.get("msc", "x")["spec"]["brokers"]["template"]["spec"]
    assert stored["nodeSelector"] == {"disk": "ssd"}
    assert not stored.keys() & spec.keys() - {"nodeSelector"}


def test_what_a_template_may_have(namespace: Namespace) -> None:
    metadata = {
        "labels": {"team": "x", "app.kubernetes.io/part-of": "shop"},
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true", "a/b": "c"},
    }
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    spec = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "disk", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"team": "x"}},
            }
        ],
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 90,
        "containers": [{"name": "broker", "env": [{"name": "TZ", "value": "UTC"}]}],
    }
    namespace.apply(manifest("Cluster", template(metadata=metadata, spec=spec)))
    stored = namespace.get("msc", "x")
    made = decode(stored)
    assert isinstance(made, Cluster)
    built = stateful_set(made, image="broker", pull_policy="Never")
    built["metadata"].pop("ownerReferences")
    namespace.apply(built)  # Kubernetes accepts the resulting object
    pod = namespace.get("statefulset", "x-brokers")["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= metadata["labels"].items()
    assert pod["spec"]["affinity"]["nodeAffinity"] == spec["affinity"]["nodeAffinity"]
    assert pod["spec"]["affinity"]["podAntiAffinity"]


def test_what_sparks_configuration_may_have(module_namespace: Namespace) -> None:
    conf, name = {f"{key}x" if key.endswith(".") else key: "1" for key in allowed_conf()}, unique("x")
    module_namespace.apply(manifest("BatchLoad", {**LOAD, "spark": {"conf": conf}}, name))
    assert module_namespace.get("msb", name)["spec"]["spark"]["conf"] == conf


def test_a_kind_nobody_knows(module_namespace: Namespace) -> None:
    with pytest.raises(CommandFailed, match='no matches for kind "Queue"'):
        module_namespace.apply(manifest("Queue", {}))


CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Topic", REF, {**REF, "topicName": "y"}, "spec.topicName: cannot change"),
    ("Topic", REF, {"clusterRef": {"name": "other"}}, "clusterRef: cannot change"),
    ("ConsumerGroup", {**REF, "groupId": "g"}, REF, "spec.groupId: cannot change"),
    ("BatchLoad", LOAD, {**LOAD, "clusterRef": {"name": "other"}}, "clusterRef: cannot change"),
    (
        "MirrorMaker",
        MIRROR,
        {**MIRROR, "target": {"bootstrap": "b:1"}},
        "target: clusterRef and bootstrap cannot change",
    ),
    (
        "Cluster",
        {"brokers": {"storage": {"size": "2Gi"}}},
        {"brokers": {"storage": {"size": "1500Mi"}}},
        "a volume can grow, but not shrink",
    ),
    (
        "Cluster",
        {},
        {"listeners": [{"name": "internal", "type": "Internal", "port": 9093}]},
        "listeners: the port of the Internal listener cannot change",
    ),
    (
        "Cluster",
        {"listeners": [{"name": "internal", "type": "Internal", "port": 9093}]},
        {},
        "listeners: the port of the Internal listener cannot change",
    ),
    (
        "Cluster",
        {"listeners": [{"name": "a", "type": "Internal", "port": 9093}]},
        {
            "listeners": [
                {"name": "a", "type": "NodePort", "port": 9093},
                {"name": "b", "type": "Internal", "port": 9094},
            ]
        },
        "listeners: the port of the Internal listener cannot change",
    ),
    (
        "Cluster",
        {"zookeeper": {"connect": "zk:2181/west"}},
        {"zookeeper": {"connect": "zk:2181/wets"}},
        "zookeeper.connect: cannot change",
    ),
    (
        "Cluster",
        {"brokers": {"storage": {"className": "a"}}},
        {"brokers": {"storage": {}}},
        "storage.className: cannot change",
    ),
]


@pytest.mark.parametrize(
    ("kind", "before", "after", "words"),
    CHANGES,
    ids=[f"{kind}-{words[:40]}" for kind, _, _, words in CHANGES],
)
def test_what_cannot_change(
    module_namespace: Namespace, kind: str, before: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    name = unique("x")
    module_namespace.apply(manifest(kind, before, name))
    with pytest.raises(CommandFailed, match=words):
        module_namespace.apply(manifest(kind, after, name))


def test_what_may_change(namespace: Namespace) -> None:
    namespace.apply(manifest("Topic", REF))
    namespace.apply(manifest("Topic", {**REF, "topicName": "x"}))  # the default value
    namespace.apply(manifest("Cluster", {"brokers": {"storage": {"size": "1Gi"}}}))
    namespace.apply(manifest("Cluster", {"brokers": {"storage": {"size": "1024Mi"}}}))
    namespace.apply(manifest("Cluster", {"brokers": {"storage": {"size": "2Gi"}}}))
    inside = {"name": "internal", "type": "Internal", "port": 9092}  # the default listener
    nodes = {"name": "outside", "type": "NodePort", "port": 9094, **PLAIN}
    storage = {"brokers": {"storage": {"size": "2Gi"}}}
    namespace.apply(manifest("Cluster", {**storage, "listeners": [inside, nodes]}))
    namespace.apply(manifest("Cluster", {**storage, "listeners": [{**nodes, "port": 9095}, inside]}))
    namespace.apply(manifest("Cluster", storage))


FULL = {
    "volumes": [
        {"name": "ca", "configMap": {"name": "ca"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
    ],
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
}


def full(container: str) -> dict[str, Any]:
    env, mounts = [{"name": "TZ", "value": "UTC"}], [{"name": "ca", "mountPath": "/mnt/ca"}]
    return {"spec": {**FULL, "containers": [{"name": container, "env": env, "volumeMounts": mounts}]}}


def test_nulls_count_as_left_out(namespace: Namespace) -> None:
    """The rules of `schema.without_nulls`: those of the API server."""
    topic = manifest("Topic", {**REF, "partitions": None, "config": {"retention.ms": None}})
    topic["metadata"] |= {"creationTimestamp": None, "labels": None, "annotations": None}
    namespace.apply(topic)
    with pytest.raises(CommandFailed, match="Required value"):
        namespace.apply(manifest("Topic", {"clusterRef": None}, "other"))


def test_every_kind_takes_templates_and_resources(namespace: Namespace) -> None:
    resources = {"requests": {"cpu": "50m"}, "limits": {"ephemeral-storage": "1Gi"}}
    parts = {one: {"template": full(one), "resources": resources} for one in ("driver", "executor")}
    ensemble = {"replicas": 3, "template": full("zookeeper"), "resources": resources}
    for kind, spec in {
        "Cluster": {**template(**full("broker")), "zookeeper": ensemble},
        "MirrorMaker": {**MIRROR, "template": full("mirror"), "resources": resources},
        "BatchLoad": {**LOAD, "spark": parts},
    }.items():
        namespace.apply(manifest(kind, spec))
        decode(namespace.get(f"{kind.lower()}s.millstream.dev", "x"))
    stored = namespace.get("msc", "x")["spec"]["zookeeper"]
    assert stored["template"]["spec"]["volumes"][1] == FULL["volumes"][1]
    assert stored["resources"] == resources


@pytest.fixture
def before_plaintext(api_server: None) -> Iterator[None]:
    """The Cluster CRD from before external listeners required allowPlaintext."""
    crd = yaml.safe_load((ROOT / "crds/clusters.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    listener = spec["listeners"]["items"]
    listener["x-kubernetes-validations"] = [
        rule for rule in listener["x-kubernetes-validations"] if "needs allowPlaintext" not in rule["message"]
    ]
    definition(json.dumps(crd))
    yield
    definition((ROOT / "crds/clusters.yaml").read_text())


def definition(text: str) -> None:
    apply = ("kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-")
    run(*apply, stdin=text.encode())


def test_a_cluster_from_before_external_listeners_had_to_allow_plain_text_is_not_wedged(
    before_plaintext: None, namespace: Namespace
) -> None:
    old = manifest("Cluster", outside(), "old")
    until("the older definition serves", lambda: namespace.apply(old) or True)
    definition((ROOT / "crds/clusters.yaml").read_text())
    until("the new definition serves", lambda: refused(namespace, manifest("Cluster", outside(), "new")))
    # changes elsewhere pass: metadata, other fields, the operator's status, a finalizer
    namespace.kubectl("annotate", "msc", "old", "a=b")
    namespace.patch("msc", "old", {"spec": {"config": {"log.retention.hours": "3"}}})
    namespace.patch("msc", "old", {"metadata": {"finalizers": ["millstream.dev/operator"]}})
    namespace.patch("msc", "old", {"metadata": {"finalizers": []}})
    status = json.dumps({"status": {"clusterId": "c"}})
    namespace.kubectl("patch", "msc", "old", "--subresource=status", "--type=merge", "--patch", status)
    assert namespace.get("msc", "old")["status"] == {"clusterId": "c"}
    # a changed listener must set allowPlaintext
    assert refused(namespace, manifest("Cluster", outside(port=9095), "old"))
    namespace.apply(manifest("Cluster", outside(port=9095, **PLAIN), "old"))


def refused(namespace: Namespace, document: dict[str, Any]) -> bool:
    try:
        namespace.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(document).encode())
    except CommandFailed as error:
        return "needs allowPlaintext: true" in str(error)
    return False


def test_defaults_columns_categories_and_scale(namespace: Namespace) -> None:
    specs = {
        "Topic": REF,
        "User": REF,
        "Cluster": {},
        "ConsumerGroup": REF,
        "MirrorMaker": MIRROR,
        "BatchLoad": LOAD,
    }
    for kind, spec in specs.items():
        namespace.apply(manifest(kind, spec))
    spec = namespace.get("mst", "x")["spec"]
    assert spec == {**REF, "config": {}, "deletionPolicy": "Retain"}
    assert namespace.get("msc", "x")["spec"]["brokers"]["storage"] == {
        "size": "10Gi",
        "deletionPolicy": "Retain",
    }
    shown = namespace.kubectl("get", "millstream")
    for name in ("cluster", "topic", "user", "consumergroup", "mirrormaker", "batchload"):
        assert f"{name}.millstream.dev/x" in shown
    assert namespace.kubectl("get", "topics.millstream.dev").splitlines()[0].split()[-3:] == [
        "READY",
        "REASON",
        "AGE",
    ]
    namespace.kubectl("scale", "mirrormaker", "x", "--replicas=3")
    assert namespace.get("msm", "x")["spec"]["replicas"] == 3
