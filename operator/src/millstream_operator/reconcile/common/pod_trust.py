"""The authorities that our pods trust: a copy of those of the Clusters that they use, in a Secret of their resource."""

from __future__ import annotations

from collections.abc import Mapping

from ...kubernetes.client import Kube, KubeError, Manifest
from ...models import Cluster
from ...models.conditions import Reason
from ...models.problem import Problem
from ...resources.certificates import CA, trust_secret
from ...resources.owned import opaque_secret, values_of
from ...state.context import Parts
from .objects import NotOurs, ensure
from .secrets import not_readable


def ensure_trust(services: Parts, secret: Manifest, clusters: Mapping[str, Cluster]) -> Problem | None:
    """Keep the copy up to date. ``secret``: without values; ``clusters``: by the keys that get their authorities.

    Pods read it for each connection, as kubelet updates what it has mounted. While an authority is replaced, both are
    trusted for longer than the copy takes (LEAST_OVERLAP).
    """
    values = {}
    try:
        for key, cluster in clusters.items():
            found = authorities_of(services.kube, cluster)
            if isinstance(found, Problem):
                return found
            values[key] = found
        if values:
            ensure(services.kube, opaque_secret(secret, values, {}))
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    except KubeError as error:
        return not_readable(error, "a Cluster has TLS, and for its authorities the operator has")
    return None


def authorities_of(kube: Kube, cluster: Cluster) -> bytes | Problem:
    """The authorities that a Cluster's brokers have their certificates from, in PEM format. Raises KubeError."""
    live = kube.get("v1", "Secret", cluster.namespace, trust_secret(cluster))
    return values_of(live).get(CA) or Problem(
        Reason.CLUSTER_NOT_READY,
        f"Cluster {cluster.namespace}/{cluster.name} has no Secret {trust_secret(cluster)} with its authorities yet:"
        " see its condition CertificatesReady",
    )
