"""Resolves a clusterRef: whether the Cluster exists, and whether this namespace may refer to it."""

from __future__ import annotations

import contextlib

from ...models import API_VERSION, Cluster, ClusterRef, ConsumerGroup, ManifestError, Resource, Topic, User
from ...models.conditions import Reason
from ...models.keys import ClusterKey, Key
from ...models.problem import Problem
from ...state.context import Resources, Statuses


def cluster_key(namespace: str, ref: ClusterRef) -> ClusterKey:
    """The key of the Cluster that a reference in ``namespace`` names."""
    return ClusterKey(ref.namespace or namespace, ref.name)


def find_cluster(
    services: Resources, namespace: str, ref: ClusterRef, *, to_delete: bool = False
) -> Cluster | Problem:
    """The Cluster that a resource in ``namespace`` refers to, or why it cannot be used.

    To delete something in it, a Cluster that is being deleted may be used as long as it exists.
    """
    key = cluster_key(namespace, ref)
    try:
        cluster = services.store.get(Cluster, key.namespace, key.name)
    except ManifestError as error:
        return Problem(Reason.CLUSTER_NOT_READY, str(error))

    if cluster is None:
        return Problem(
            Reason.CLUSTER_NOT_FOUND, f"there is no Cluster {key.name} in namespace {key.namespace}"
        )
    if not may_refer(cluster, namespace):
        return not_allowed(cluster, namespace)
    if not services.acts_in(key.namespace):
        message = (
            f"another release of the operator acts in namespace {key.namespace}, where Cluster {key.name} is, and this "
            f"one in namespace {namespace}: give both namespaces to one release"
        )
        return Problem(Reason.OTHER_RELEASE, message)
    if cluster.metadata.deletion_timestamp is not None and not to_delete:
        return Problem(
            Reason.CLUSTER_NOT_FOUND, f"Cluster {key.name} in namespace {key.namespace} is being deleted"
        )
    return cluster


def read_cluster(services: Statuses, namespace: str, ref: ClusterRef) -> Cluster | Problem:
    """The same as the API server has it at this moment: the watch may lag behind."""
    key = cluster_key(namespace, ref)
    live = services.kube.get(API_VERSION, Cluster.KIND, key.namespace, key.name)
    if live is not None:
        services.store.put_written(live)
    return find_cluster(services, namespace, ref)


def may_refer(cluster: Cluster, namespace: str) -> bool:
    allowed = cluster.spec.allowed_namespaces
    return namespace == cluster.namespace or "*" in allowed or namespace in allowed


def not_allowed(cluster: Cluster, namespace: str) -> Problem:
    return Problem(
        Reason.NAMESPACE_NOT_ALLOWED,
        f"Cluster {cluster.name} in namespace {cluster.namespace} does not allow resources of namespace {namespace}: "
        "add it to the Cluster's spec.allowedNamespaces",
    )


def clusters_of_id(services: Resources, cluster_id: str) -> list[Cluster]:
    """The Clusters with this id: several if one was restored from copies of another's volumes."""
    found = []
    for key in services.store.keys(Cluster.KIND):
        with contextlib.suppress(ManifestError):
            cluster = services.store.get(Cluster, key.namespace, key.name)
            if cluster is not None and cluster.status.cluster_id == cluster_id:
                found.append(cluster)
    return found


def rival(
    services: Resources,
    resource: Resource,
    cluster: Cluster,
    key: ClusterKey,
    name: str,
    within: str | None = None,
) -> Key | None:
    """The older resource of the same kind that claims a topic or group, if any: the oldest wins.

    A resource that another release would act on has no claim: that release refuses it. Nor has one of another
    namespace than `within`, if that is given.
    """
    for claim in services.store.claims(resource.KIND, key, name):
        if claim.uid == resource.metadata.uid:
            return None
        if within is not None and claim.key.namespace != within:
            continue
        if may_refer(cluster, claim.key.namespace) and services.acts_in(claim.key.namespace):
            return claim.key
    return None


def rival_problem(
    services: Resources,
    resource: Topic | ConsumerGroup | User,
    cluster: Cluster,
    name: str,
    what: str,
    reason: Reason,
    within: str | None = None,
) -> Problem | None:
    """The conflict with an older resource of the same kind that names the same ``what`` (topic, group), if any."""
    key = cluster_key(resource.namespace, resource.spec.cluster_ref)
    other = rival(services, resource, cluster, key, name, within)
    if other is None:
        return None
    return Problem(
        reason,
        f"{what} {name} of Cluster {cluster.name} belongs to the older {resource.KIND} {other.name} "
        f"in namespace {other.namespace}: delete this {resource.KIND}, or create it with another {resource.CLAIMS}",
    )
