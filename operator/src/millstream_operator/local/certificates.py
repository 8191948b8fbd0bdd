"""The certificates of local Clusters: the operator's Secrets, as files of mode 600 (user_secrets.py)."""

from __future__ import annotations

from ..models import Cluster
from ..models.problem import NewCondition, Problem
from ..reconcile.cluster.certificates import apply_certificates
from ..resources import certificates as build
from ..state.context import ClusterParts
from .clusters import LocalCluster
from .secrets import Secrets
from .user_secrets import UserSecrets


def write_certificates(
    services: ClusterParts, local: LocalCluster, secrets: Secrets, files: UserSecrets
) -> tuple[Problem | None, NewCondition | None]:
    """Why brokers cannot have their certificates, and the Cluster's condition; None without TLS."""
    cluster = local.cluster
    if not cluster.spec.is_encrypted:
        return None, None
    local.data.make("users")
    name = cluster.spec.own_authority
    if name is not None and (values := secrets.get((cluster.namespace, name))) is not None:
        files.take(cluster.namespace, name, values)
    names = dict.fromkeys(local.brokers, build.LAPTOP)
    return apply_certificates(services, cluster, names, local.encrypted_endpoints())[:2]


def forget_certificates(cluster: Cluster, files: UserSecrets) -> None:
    """Delete the certificates and the authority that were made for a Cluster."""
    for name in (build.authority_secret(cluster), build.trust_secret(cluster), build.brokers_secret(cluster)):
        files.delete_of(cluster.metadata.uid, cluster.namespace, name)
