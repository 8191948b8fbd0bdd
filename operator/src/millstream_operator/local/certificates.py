"""Certificates and the operator's login of local Clusters: its Secrets, as files of mode 600 (user_secrets.py)."""

from __future__ import annotations

import time

from ..kafka.client_config import ClientConfig
from ..kafka.connection import NOWHERE
from ..kubernetes.client import Kube
from ..models.conditions import Reason
from ..models.problem import NewCondition, Problem
from ..reconcile.cluster.certificates import apply_certificates
from ..reconcile.cluster.platform import ensure_login
from ..reconcile.common.objects import NotOurs
from ..resources import certificates as build
from ..state.context import ClusterParts
from ..state.platform import with_password
from . import processes
from .clusters import LocalCluster
from .secrets import Secrets
from .user_secrets import UserSecrets

SERVED_S = 30.0
"""How long to wait until running brokers serve what was just issued: they look for it every few seconds."""


def write_certificates(
    services: ClusterParts, local: LocalCluster, secrets: Secrets, files: UserSecrets
) -> tuple[Problem | None, NewCondition | None]:
    """Why brokers cannot have their certificates, and the Cluster's condition; None without TLS."""
    cluster = local.cluster
    if not cluster.spec.is_encrypted:
        return None, None
    local.data.make("users", private=True)
    name = cluster.spec.own_authority
    if name is not None and (values := secrets.get((cluster.namespace, name))) is not None:
        files.take(cluster.namespace, name, values)
    names = dict.fromkeys(local.brokers, build.LAPTOP)
    until = time.monotonic() + SERVED_S
    while True:
        problem, said, soon = apply_certificates(services, cluster, names, local.encrypted_endpoints())
        if not soon or time.monotonic() > until:
            return problem, said
        time.sleep(processes.POLL_S)  # until then, nobody who trusts the new authority can connect


def write_login(services: ClusterParts, local: LocalCluster) -> Problem | None:
    """Why brokers cannot verify the operator's password; it is generated once, if they ask for it."""
    if local.cluster.status.platform is None:
        return None
    local.data.make("users", private=True)
    try:
        login = ensure_login(services, local.cluster)
    except NotOurs as error:
        return Problem(Reason.OBJECT_NOT_OURS, str(error))
    return login if isinstance(login, Problem) else None


def client_of(kube: Kube, local: LocalCluster) -> ClientConfig:
    """How to connect to a Cluster's brokers. If none runs here, none is queried: other processes may have their
    ports."""
    if not local.running():
        return ClientConfig(NOWHERE)
    if (platform := local.cluster.status.platform) is None:
        return ClientConfig(local.bootstrap)
    return ClientConfig(platform.bootstrap, with_password(kube, local.cluster, platform))
