"""Manifests become records; an error names the field, the value and the allowed values."""

from __future__ import annotations

import pytest

from millstream_harness.specs import LOAD, MIRROR, REF, manifest, workload
from millstream_operator.models import (
    API_VERSION,
    BatchLoad,
    Cluster,
    ManifestError,
    MirrorMaker,
    Topic,
    encode_status,
)
from millstream_operator.validation.admission import decode

WORKLOAD = workload()
OFFSET = {"topic": "t", "partition": 0, "offset": 0}


def test_defaults() -> None:
    topic = decode(manifest("Topic", REF))
    assert isinstance(topic, Topic)
    assert (topic.topic_name, topic.spec.partitions, topic.spec.replication_factor) == ("x", None, None)
    assert topic.spec.deletion_policy == "Retain"
    cluster = decode(manifest("Cluster", {}))
    assert isinstance(cluster, Cluster)
    assert cluster.spec.brokers.storage.deletion_policy == "Retain"
    assert (cluster.spec.internal.name, cluster.spec.internal.port) == ("internal", 9092)
    load = decode(manifest("BatchLoad", LOAD))
    assert isinstance(load, BatchLoad)
    assert (load.spec.from_.position, load.spec.until.position, load.spec.min_records) == (
        "Committed",
        "Latest",
        1,
    )
    mirror = decode(manifest("MirrorMaker", MIRROR))
    assert isinstance(mirror, MirrorMaker)
    assert (mirror.spec.mode, mirror.spec.naming, mirror.spec.replicas) == ("Aggregate", "Same", 1)


def test_a_status_leaves_out_what_is_not_known_and_keeps_zeros() -> None:
    topic = decode(manifest("Topic", REF, status={"partitions": 0, "somethingNew": 1}))
    assert isinstance(topic, Topic)
    assert encode_status(topic.status) == {"partitions": 0}


def template(**spec: object) -> dict[str, object]:
    return {"brokers": {"template": {"spec": spec}}}


def annotated(**metadata: object) -> dict[str, object]:
    return {"brokers": {"template": {"metadata": metadata}}}


def broker_env(**variable: object) -> dict[str, object]:
    return template(containers=[{"name": "broker", "env": [variable]}])


BAD: list[tuple[str, object, str]] = [
    *(
        ("Cluster", template(**{field: value}), f"spec.brokers.template.spec.{field}: unknown field")
        for field, value in {
            "hostPID": True,
            "hostNetwork": True,
            "hostIPC": True,
            "securityContext": {"runAsUser": 0},
            "serviceAccountName": "admin",
            "automountServiceAccountToken": True,
            "initContainers": [{"name": "broker"}],
            "ephemeralContainers": [],
            "nodeName": "control-plane",
            "runtimeClassName": "none",
            "shareProcessNamespace": True,
        }.items()
    ),
    *(
        (
            "Cluster",
            template(containers=[{"name": "broker", field: value}]),
            f"spec.brokers.template.spec.containers[0].{field}: unknown field",
        )
        for field, value in {
            "securityContext": {"privileged": True},
            "image": "mine",
            "command": ["sh"],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "lifecycle": {},
            "ports": [{"containerPort": 1, "hostPort": 1}],
        }.items()
    ),
    ("Cluster", template(containers=[{"name": "sidecar"}]), "spec.brokers.template.spec.containers[0].name"),
    (
        "Cluster",
        broker_env(name="A", valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}),
        "env[0].valueFrom: unknown field; a variable has a value of its own, as others could see that of a Secret; ",
    ),
    (
        "Cluster",
        broker_env(name="POD_INDEX", value="1"),
        "env: HOST_IP, NODE_NAME, POD_INDEX and POD_IP are set by the operator",
    ),
    ("Cluster", template(priorityClassName="system-node-critical"), "system-… belong to Kubernetes"),
    (
        "Cluster",
        annotated(labels={"millstream.dev/cluster": "b"}),
        "labels: keys of kubernetes.io, k8s.io and millstream.dev are reserved",
    ),
    ("Cluster", annotated(labels={"app.kubernetes.io/component": "b"}), "labels: keys of kubernetes.io"),
    ("Cluster", annotated(labels={"controller-revision-hash": "b"}), "labels: keys of"),
    ("Cluster", annotated(labels={"team": "a b"}), "spec.brokers.template.metadata.labels"),
    ("Cluster", annotated(annotations={"millstream.dev/config-hash": "b"}), "annotations: keys of"),
    (
        "Cluster",
        annotated(annotations={"container.apparmor.security.beta.kubernetes.io/broker": "unconfined"}),
        "annotations: keys of kubernetes.io, k8s.io and millstream.dev are reserved",
    ),
    (
        "Topic",
        {**REF, "partitons": 1},
        "spec.partitons: unknown field; did you mean partitions? allowed here: clusterRef, config, deletionPolicy",
    ),
    ("Topic", {}, "spec.clusterRef: is required"),
    ("Topic", {**REF, "partitions": 0}, "spec.partitions: 0 is too small; allowed: 1 or more"),
    (
        "Topic",
        {**REF, "partitions": "six"},
        'spec.partitions: "six" is not an integer',
    ),
    (
        "Topic",
        {**REF, "partitions": True},
        "spec.partitions: true is not an integer",
    ),
    (
        "Topic",
        {**REF, "config": {"a": "1", "b": 2}},
        'spec.config.b: 2 is not a string; write "2" in quotes',
    ),
    ("Topic", {**REF, "deletionPolicy": "Drop"}, "allowed: Retain, Delete"),
    ("Topic", {**REF, "topicName": "a b"}, 'spec.topicName: "a b" is not allowed'),
    ("Topic", {**REF, "topicName": ".."}, 'spec.topicName: ".." is not allowed'),
    (
        "Topic",
        {"clusterRef": {"name": "d", "nam": 1}},
        "spec.clusterRef.nam: unknown field; did you mean name? allowed here: name, namespace",
    ),
    (
        "Topic",
        {"clusterRef": "default"},
        'spec.clusterRef: "default" is not an object; allowed here: name, namespace',
    ),
    ("BatchLoad", {"schedule": "@hourly"}, 'spec.schedule: "@hourly" is not an object; allowed here: '),
    (
        "Topic",
        {**REF, "tls": {}},
        "spec.tls: unknown field; the listeners and the zookeeper of a Cluster, and",
    ),
    (
        "MirrorMaker",
        {"sources": [{"name": "a", "topics": {"include": ["b"]}}]},
        "spec.sources[0].topics: unknown field; it is a field of spec and of spec.promote; allowed here: ",
    ),
    (
        "MirrorMaker",
        {"sources": [{"name": "a", "sasl": {"password": {"valueFrom": {}}}}]},
        "sasl.password.valueFrom: unknown field; secretKeyRef is here without it; allowed here: secretKeyRef",
    ),
    ("Cluster", {"brokers": {"replicas": 0}}, "spec.brokers.replicas: 0 is too small"),
    ("Cluster", {"brokers": {"storage": {"size": "ten"}}}, 'spec.brokers.storage.size: "ten" is not allowed'),
    ("Cluster", {"brokers": {"storage": {"size": 0}}}, "a size greater than 0 is required"),
    (
        "Cluster",
        {"zookeeper": {"replicas": 1, "storage": {"size": "0Gi"}}},
        "a size greater than 0 is required",
    ),
    ("Cluster", {"zookeeper": {}}, "exactly one of replicas and connect is required"),
    ("Cluster", {"zookeeper": {"replicas": 2}}, "allowed: 1, 3"),
    ("Cluster", {"config": {"a\nlog.dirs": "/tmp"}}, "spec.config: config: keys consist of letters"),
    ("Cluster", {"config": {"log.dirs\n": "/tmp"}}, "config: keys consist of letters"),
    ("Cluster", {"config": {"": "/tmp"}}, "config: keys consist of letters"),
    ("Cluster", {"brokers": {"replicas": 3}}, "spec: zookeeper: required with more than one broker"),
    ("Cluster", {"listeners": [{"name": "a", "type": "Foo", "port": 9092}]}, "spec.listeners[0].type"),
    (
        "Cluster",
        {"listeners": [{"name": "a", "type": "NodePort", "port": 9094}]},
        "exactly one of type Internal",
    ),
    ("Cluster", {"listeners": [{"name": "a", "type": "Internal", "port": 9404}]}, "9404 is taken"),
    ("ConsumerGroup", {**REF, "startAt": "Earliest"}, "startAt: list its topics in topics"),
    ("ConsumerGroup", {**REF, "stuckAfterSeconds": 0}, "spec.stuckAfterSeconds: 0 is too small"),
    ("ConsumerGroup", {**REF, "reset": {"to": "Latest"}}, "spec.reset.requestId"),
    (
        "ConsumerGroup",
        {**REF, "reset": {"requestId": "r", "to": "Timestamp"}},
        "reset: timestamp is required with to Timestamp",
    ),
    (
        "ConsumerGroup",
        {**REF, "reset": {"requestId": "r", "to": "Shift"}},
        "reset: shift is required with to Shift",
    ),
    (
        "ConsumerGroup",
        {**REF, "reset": {"requestId": "r", "to": "Latest", "offsets": [OFFSET]}},
        "reset: offsets are required with to Offsets, and allowed with it only",
    ),
    (
        "ConsumerGroup",
        {**REF, "reset": {"requestId": "r", "to": "Offsets", "offsets": [OFFSET], "topics": ["t"]}},
        "reset: topics are not allowed with to Offsets",
    ),
    ("ConsumerGroup", {**REF, "workload": WORKLOAD}, "workload: list its topics in topics"),
    (
        "ConsumerGroup",
        {**REF, "topics": ["t"], "workload": {"template": {"spec": {"containers": []}}}},
        "spec.workload.template.spec.containers: 0 items are too few",
    ),
    ("ConsumerGroup", {**REF, "topics": ["t"], "workload": {"template": {"spec": {}}}}, "containers"),
    (
        "ConsumerGroup",
        {**REF, "topics": ["t"], "workload": {**WORKLOAD, "scaling": {"min": 3, "max": 2, "targetLag": 1}}},
        "spec.workload.scaling: scaling: min must not be above max",
    ),
    (
        "ConsumerGroup",
        {
            **REF,
            "topics": ["t"],
            "workload": {**WORKLOAD, "replicas": 1, "scaling": {"max": 2, "targetLag": 1}},
        },
        "workload: replicas are not allowed with scaling, which chooses them",
    ),
    (
        "ConsumerGroup",
        {**REF, "topics": ["t"], "workload": workload(env=[{"name": "MILLSTREAM_GROUP_ID", "value": "x"}])},
        "MILLSTREAM_GROUP_ID and MILLSTREAM_TOPICS are set by the operator",
    ),
    (
        "ConsumerGroup",
        {**REF, "topics": ["t"], "workload": workload(securityContext={"privileged": True})},
        "spec.workload.template.spec.containers[0].securityContext",
    ),
    ("ConsumerGroup", {**REF, "maxLag": {"records": -1}}, "spec.maxLag.records: -1 is too small"),
    ("MirrorMaker", {**MIRROR, "sources": []}, "spec.sources: 0 items are too few"),
    (
        "MirrorMaker",
        {**MIRROR, "sources": [{"name": "w"}]},
        "spec.sources[0]: sources: exactly one of clusterRef and bootstrap",
    ),
    ("MirrorMaker", {**MIRROR, "topics": {"include": ["["]}}, "include: '[' is not a regular expression"),
    ("MirrorMaker", {**MIRROR, "topics": {"include": ["(?=a)"]}}, "in RE2's syntax: invalid perl operator"),
    ("MirrorMaker", {**MIRROR, "mode": "Copy"}, "allowed: Aggregate, Identity"),
]


@pytest.mark.parametrize(
    ("kind", "spec", "message"), BAD, ids=[f"{kind}-{text[:40]}" for kind, _, text in BAD]
)
def test_bad_spec(kind: str, spec: object, message: str) -> None:
    with pytest.raises(ManifestError) as error:
        decode(manifest(kind, spec))
    assert str(error.value).startswith(f"{kind} x: spec")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "a manifest must be a mapping"),
        ([1], "a manifest must be a mapping"),
        ({"kind": "Topic"}, "apiVersion: nothing is not allowed: expected millstream.dev/v1alpha1"),
        (
            {"apiVersion": API_VERSION, "kind": "Queue"},
            'kind: "Queue" is not allowed: expected one of Cluster, Topic',
        ),
        (
            {"apiVersion": API_VERSION, "kind": "Topic", "spec": REF},
            "Topic ?: Object missing required field `metadata`",
        ),
        ({**manifest("Topic", REF), "speck": 1}, "speck: unknown field"),
    ],
)
def test_bad_document(document: object, message: str) -> None:
    with pytest.raises(ManifestError, match=r".*") as error:
        decode(document)
    assert message in str(error.value)
