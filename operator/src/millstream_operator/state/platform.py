"""How the platform itself connects to the brokers of a Cluster: this is the only module that knows."""

from __future__ import annotations

from ..kafka.client_config import ClientConfig
from ..kubernetes.client import Kube
from ..models import Cluster
from ..resources.cluster import bootstrap_of


def platform_client(kube: Kube, cluster: Cluster) -> ClientConfig:
    """The operator's connections. ``kube``: has the Secrets."""
    return ClientConfig(bootstrap_of(cluster))
