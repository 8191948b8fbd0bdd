"""References to Clusters: target, permission, and which of two resources owns a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream_harness.in_memory import deleted, in_memory, stored
from millstream_harness.manifests import cluster, topic
from millstream_operator.models import Cluster, ClusterRef, Topic, decode_as
from millstream_operator.models.problem import Problem
from millstream_operator.reconcile.common.reference import cluster_key, find_cluster, rival


def test_a_reference_without_a_namespace_means_the_resources_own() -> None:
    assert cluster_key("mine", ClusterRef(name="east")) == ("mine", "east")
    assert cluster_key("mine", ClusterRef(name="east", namespace="theirs")) == ("theirs", "east")


def why_not(manifest: Any, namespace: str) -> tuple[str, str] | None:
    services = in_memory(*([manifest] if manifest else [])).services
    found = find_cluster(services, namespace, ClusterRef(name="east", namespace="ns"))
    if isinstance(found, Problem):
        return found.reason.value, found.message
    assert (found.namespace, found.name) == ("ns", "east")
    return None


def test_a_cluster_may_be_used_from_its_own_namespace() -> None:
    assert why_not(stored(cluster("east")), "ns") is None


def test_a_cluster_that_is_not_there() -> None:
    assert why_not(None, "ns") == ("ClusterNotFound", "there is no Cluster east in namespace ns")


@pytest.mark.parametrize("allowed", [["other"], ["*"], ["more", "other"]])
def test_a_cluster_may_be_used_from_namespaces_that_it_allows(allowed: list[str]) -> None:
    assert why_not(stored(cluster("east", allowedNamespaces=allowed)), "other") is None


@pytest.mark.parametrize("allowed", [[], ["more"]])
def test_a_cluster_may_not_be_used_from_elsewhere(allowed: list[str]) -> None:
    assert why_not(stored(cluster("east", allowedNamespaces=allowed)), "other") == (
        "NamespaceNotAllowed",
        "Cluster east in namespace ns does not allow resources of namespace other: add it to the Cluster's "
        "spec.allowedNamespaces",
    )


def test_a_cluster_where_another_release_acts_may_be_used_only_there() -> None:
    """Each release compares the age of only its own resources: both would apply their partitions and configuration."""
    east = stored(cluster("east", allowedNamespaces=["other"]))
    services = replace(in_memory(east).services, acts_in=lambda namespace: namespace == "other")
    found = find_cluster(services, "other", ClusterRef(name="east", namespace="ns"))
    assert isinstance(found, Problem)
    assert (found.reason.value, found.message) == (
        "OtherRelease",
        "another release of the operator acts in namespace ns, where Cluster east is, and this one in namespace other: "
        "give both namespaces to one release",
    )


def test_a_resource_on_which_another_release_acts_has_no_claim() -> None:
    """The other release refuses it."""
    east = stored(cluster("east", allowedNamespaces=["other"]))
    theirs = a_topic("theirs", "2026-01-01T00:00:00Z", "other")
    ours = a_topic("ours", "2026-02-01T00:00:00Z")
    services = in_memory(east, theirs, ours).services
    key = cluster_key("ns", ClusterRef(name="east"))
    asked = (decode_as(Topic, ours), decode_as(Cluster, east), key, "flights")
    assert rival(services, *asked) == ("Topic", "other", "theirs")
    assert rival(replace(services, acts_in=lambda namespace: namespace == "ns"), *asked) is None


def test_a_cluster_that_is_being_deleted_is_used_no_more() -> None:
    assert why_not(stored(cluster("east"), **deleted(1)), "ns") == (
        "ClusterNotFound",
        "Cluster east in namespace ns is being deleted",
    )


def test_a_cluster_that_cannot_be_understood_is_not_ready() -> None:
    reason, message = why_not(stored(cluster("east", brokers={"replicas": "many"})), "ns") or ("", "")
    assert reason == "ClusterNotReady"
    assert "spec.brokers.replicas" in message


def a_topic(name: str, created: str, namespace: str = "ns") -> dict[str, Any]:
    wanted = topic(name, clusterRef={"name": "east", "namespace": "ns"}, topicName="flights")
    return stored(wanted, creationTimestamp=created, namespace=namespace)


def test_the_oldest_has_a_name_unless_it_may_not_use_the_cluster() -> None:
    stranger = a_topic("stranger", "2026-01-01T00:00:00Z", "elsewhere")
    older, younger = a_topic("older", "2026-02-01T00:00:00Z"), a_topic("younger", "2026-03-01T00:00:00Z")
    east = stored(cluster("east"))
    services = in_memory(east, stranger, older, younger).services
    key = cluster_key("ns", ClusterRef(name="east"))

    def rival_of(manifest: dict[str, Any]) -> object:
        found = rival(services, decode_as(Topic, manifest), decode_as(Cluster, east), key, "flights")
        return found and found.name

    assert [rival_of(one) for one in (older, younger)] == [None, "older"]
