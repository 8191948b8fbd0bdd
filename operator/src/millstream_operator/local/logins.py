"""The operator's login at local Clusters, in files of mode 600 (user_secrets.py)."""

from __future__ import annotations

from ..kafka.client_config import ClientConfig
from ..kafka.connection import NOWHERE
from ..kubernetes.client import Kube
from ..models.conditions import Reason
from ..models.problem import Problem
from ..reconcile.cluster.platform import ensure_login
from ..reconcile.common.objects import NotOurs
from ..state.context import ClusterParts
from ..state.platform import with_password
from .clusters import LocalCluster


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
