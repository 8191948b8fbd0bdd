"""The operator validates stored resources against the CRDs: once for each spec, with the laptop's validator."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_operator.models import API_VERSION, Cluster, ManifestError, Topic
from millstream_operator.resources.cluster import stateful_set
from millstream_operator.state.cache import Store
from millstream_operator.validation.admission import decode

REF = {"clusterRef": {"name": "east"}}


def manifest(kind: str, spec: dict[str, Any], version: int = 1, **more: Any) -> dict[str, Any]:
    metadata = {"name": "x", "namespace": "default", "uid": "u-1", "resourceVersion": str(version)}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec, **more}


def why(store: Store, kind: type[Cluster | Topic]) -> str:
    try:
        assert store.get(kind, "default", "x") is not None
    except ManifestError as error:
        return str(error)
    return ""


def test_a_stored_resource_that_breaks_its_crd_is_refused_until_its_spec_is_mended() -> None:
    store = Store()
    store.put(manifest("Topic", {**REF, "partitions": 0}))
    refused = "Topic x: spec.partitions: 0 is too small; allowed: 1 or more"
    assert why(store, Topic) == refused
    store.put(manifest("Topic", {**REF, "partitions": 0}, 2, status={"partitions": 3}))
    assert why(store, Topic) == refused, "a new status mends nothing"
    store.put_written(manifest("Topic", {**REF, "partitions": 1}, 3))
    assert why(store, Topic) == ""
    store.put(manifest("Topic", {**REF, "partitions": -1}, 4))
    assert "-1 is too small" in why(store, Topic)


def test_fields_of_a_newer_release_are_ignored_in_a_stored_resource_and_refused_in_a_manifest() -> None:
    """After `helm rollback`, or beside a newer release, the CRDs stay at the newer version."""
    newer = {
        **REF,
        "partitions": 3,
        "tiering": {"after": "7d"},
        "clusterRef": {"name": "east", "region": "eu"},
    }
    document = manifest("Topic", newer, tier="gold", status={"tier": "gold"})
    store = Store()
    store.put(document)
    found = store.get(Topic, "default", "x")
    assert found is not None
    assert (found.spec.partitions, found.spec.cluster_ref.name) == (3, "east")
    store.put(manifest("Topic", {**newer, "partitions": 0}, 2))
    assert why(store, Topic) == "Topic x: spec.partitions: 0 is too small; allowed: 1 or more"
    with pytest.raises(ManifestError, match=r"spec\.tiering: unknown field"):
        decode(document)


def test_an_unknown_field_of_a_stored_pod_template_reaches_no_pod() -> None:
    store = Store()
    store.put(manifest("Cluster", {"brokers": {"template": {"spec": {"hostNetwork": True}}}}))
    found = store.get(Cluster, "default", "x")
    assert found is not None
    assert "hostNetwork" not in str(stateful_set(found, image="broker:1", pull_policy="Always"))


def test_nulls_of_generators_count_as_left_out() -> None:
    """As on the API server: `kubectl create --dry-run -o yaml` and Helm write them."""
    topic = decode(
        {
            "apiVersion": API_VERSION,
            "kind": "Topic",
            "metadata": {
                "name": "flights",
                "namespace": None,
                "creationTimestamp": None,
                "labels": None,
                "annotations": {"empty": None},
                "finalizers": None,
            },
            "spec": {
                "clusterRef": {"name": "east", "namespace": None},
                "partitions": None,
                "config": {"retention.ms": None, "segment.ms": "5"},
            },
            "status": None,
        }
    )
    assert isinstance(topic, Topic)
    assert (topic.namespace, topic.metadata.labels, topic.metadata.annotations) == (
        "default",
        {},
        {"empty": ""},
    )
    assert (topic.spec.partitions, topic.spec.config) == (None, {"segment.ms": "5"})


def test_a_null_in_a_list_or_for_a_required_field_is_refused() -> None:
    document = {"apiVersion": API_VERSION, "kind": "MirrorMaker", "metadata": {"name": "m"}}
    with pytest.raises(ManifestError, match=r"spec\.sources\[0\]: null"):
        decode({**document, "spec": {"target": {"bootstrap": "a:1"}, "sources": [None]}})
    with pytest.raises(ManifestError, match=r"spec\.clusterRef: is required"):
        decode({**document, "kind": "Topic", "spec": {"clusterRef": None}})


def test_every_mistake_is_named_in_one_line() -> None:
    store = Store()
    store.put(manifest("Topic", {**REF, "partitions": 0, "deletionPolicy": "Drop"}))
    said = why(store, Topic)
    assert said.count("spec.") == 2
    assert "\n" not in said


@pytest.mark.parametrize(
    "spec",
    [
        {"zookeeper": {"replicas": 1, "connect": "zk:2181"}},
        {"config": {"a\nlog.dirs": "/tmp"}},
        {"brokers": {"template": {"metadata": {"labels": {"millstream.dev/cluster": "other"}}}}},
        {
            "brokers": {
                "template": {"spec": {"containers": [{"name": "broker", "env": [{"name": "POD_INDEX"}]}]}}
            }
        },
    ],
)
def test_rules_hold_for_what_older_crds_let_in(spec: dict[str, Any]) -> None:
    store = Store()
    store.put(manifest("Cluster", spec))
    assert why(store, Cluster).startswith("Cluster x: spec")


def test_a_status_is_no_part_of_it_and_defaults_need_not_be_stored() -> None:
    store = Store()
    store.put(manifest("Cluster", {"listeners": []}, status={"brokers": "many", "unknown": 1}))
    with pytest.raises(ManifestError, match="brokers"):  # readers still need the right types
        store.get(Cluster, "default", "x")
    store.put(manifest("Cluster", {}, 2))
    assert why(store, Cluster) == ""
