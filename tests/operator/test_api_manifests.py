"""`kubectl apply` of what cannot be: the API server says which field, which value, and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_harness.kube import CommandFailed, Namespace

REF = {"clusterRef": {"name": "default"}}
LOAD = {**REF, "topics": ["t"], "value": {"format": "Binary"}, "output": {"path": "/lake/t"}}
MIRROR = {
    "sources": [{"name": "west", "bootstrap": "west:9092"}],
    "target": {"clusterRef": {"name": "east"}},
    "topics": {"include": ["orders.*"]},
}


def manifest(kind: str, spec: dict[str, Any], name: str = "x") -> dict[str, Any]:
    return {"apiVersion": "millstream.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


BAD: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("Topic", {**REF, "partitons": 3}, ('unknown field "spec.partitons"',)),
    ("Topic", {**REF, "partitions": "six"}, ("spec.partitions", "must be of type integer")),
    ("Topic", {**REF, "partitions": 0}, ("spec.partitions", "greater than or equal to 1")),
    ("Topic", {**REF, "config": {"retention.ms": 1}}, ("spec.config.retention.ms", "must be of type string")),
    ("Topic", {"partitions": 1}, ("spec.clusterRef", "Required value")),
    ("Topic", {**REF, "topicName": "a/b"}, ("spec.topicName", "should match")),
    ("Topic", {**REF, "topicName": ".."}, ("topicName: . and .. are not allowed",)),
    ("Topic", {**REF, "deletionPolicy": "Drop"}, ('supported values: "Retain", "Delete"',)),
    ("Cluster", {"zookeeper": {}}, ("exactly one of replicas and connect is required",)),
    ("Cluster", {"brokers": {"replicas": 3}}, ("zookeeper: required with more than one broker",)),
    ("Cluster", {"brokers": {"storage": {"size": "0"}}}, ("a size greater than 0 is required",)),
    (
        "Cluster",
        {"listeners": [{"name": "a", "type": "NodePort", "port": 9094}]},
        ("exactly one of type Internal",),
    ),
    ("Cluster", {"listeners": [{"name": "a", "type": "Ingress", "port": 9094}]}, ("supported values",)),
    ("ConsumerGroup", {**REF, "startAt": "Earliest"}, ("startAt: the topics it holds for are required",)),
    ("ConsumerGroup", {**REF, "maxLag": {}}, ("spec.maxLag",)),
    (
        "MirrorMaker",
        {**MIRROR, "target": {}},
        ("target: exactly one of clusterRef and bootstrap is required",),
    ),
    ("MirrorMaker", {**MIRROR, "mode": "Identity"}, ("spec.mode",)),
    ("BatchLoad", {**LOAD, "value": {"format": "JSON"}}, ("schema is required with format JSON",)),
    ("BatchLoad", {**LOAD, "from": {"position": "Offsets"}}, ("offsets are required with position Offsets",)),
    (
        "BatchLoad",
        {**LOAD, "output": {"path": "s3a://b/x", "volumeClaimName": "v"}},
        ("path must be a folder",),
    ),
]


@pytest.mark.parametrize(
    ("kind", "spec", "words"), BAD, ids=[f"{kind}-{words[0][:40]}" for kind, _, words in BAD]
)
def test_refused(namespace: Namespace, kind: str, spec: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(CommandFailed) as error:
        namespace.apply(manifest(kind, spec))
    for word in words:
        assert word in str(error.value)


def test_a_kind_nobody_knows(namespace: Namespace) -> None:
    with pytest.raises(CommandFailed, match='no matches for kind "Queue"'):
        namespace.apply(manifest("Queue", {}))


CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Topic", REF, {**REF, "topicName": "y"}, "spec.topicName: cannot change"),
    ("Topic", REF, {"clusterRef": {"name": "other"}}, "clusterRef: cannot change"),
    ("ConsumerGroup", {**REF, "groupId": "g"}, REF, "spec.groupId: cannot change"),
    ("BatchLoad", LOAD, {**LOAD, "clusterRef": {"name": "other"}}, "clusterRef: cannot change"),
    ("MirrorMaker", MIRROR, {**MIRROR, "target": {"bootstrap": "b:1"}}, "target: cannot change"),
    (
        "Cluster",
        {"brokers": {"storage": {"size": "2Gi"}}},
        {"brokers": {"storage": {"size": "1500Mi"}}},
        "a volume may grow, never shrink",
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
    namespace: Namespace, kind: str, before: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    namespace.apply(manifest(kind, before))
    with pytest.raises(CommandFailed, match=words):
        namespace.apply(manifest(kind, after))


def test_what_may_change(namespace: Namespace) -> None:
    namespace.apply(manifest("Topic", REF))
    namespace.apply(manifest("Topic", {**REF, "topicName": "x"}))  # what it was by default
    namespace.apply(manifest("Cluster", {"brokers": {"storage": {"size": "1Gi"}}}))
    namespace.apply(manifest("Cluster", {"brokers": {"storage": {"size": "1024Mi"}}}))
    namespace.apply(manifest("Cluster", {"brokers": {"storage": {"size": "2Gi"}}}))


def test_defaults_columns_categories_and_scale(namespace: Namespace) -> None:
    specs = {"Topic": REF, "Cluster": {}, "ConsumerGroup": REF, "MirrorMaker": MIRROR, "BatchLoad": LOAD}
    for kind, spec in specs.items():
        namespace.apply(manifest(kind, spec))
    spec = namespace.get("mst", "x")["spec"]
    assert (spec["partitions"], spec["deletionPolicy"], spec["replicationFactor"]) == (1, "Retain", 1)
    assert namespace.get("msc", "x")["spec"]["brokers"]["storage"] == {
        "size": "10Gi",
        "deletionPolicy": "Retain",
    }
    shown = namespace.kubectl("get", "millstream")
    for name in ("cluster", "topic", "consumergroup", "mirrormaker", "batchload"):
        assert f"{name}.millstream.dev/x" in shown
    assert namespace.kubectl("get", "topics.millstream.dev").splitlines()[0].split()[-3:] == [
        "READY",
        "REASON",
        "AGE",
    ]
    namespace.kubectl("scale", "mirrormaker", "x", "--replicas=3")
    assert namespace.get("msm", "x")["spec"]["replicas"] == 3
