"""How the platform itself connects to the brokers of a Cluster: this is the only module that knows."""

from __future__ import annotations

from dataclasses import dataclass

from millstream_kafka.client.security import Credential, Sasl, Security

from ..kafka.client_config import ClientConfig
from ..kubernetes.client import Kube
from ..kubernetes.credentials import SecretCredential
from ..models import Cluster
from ..resources.broker_config import OPERATOR_USER
from ..resources.cluster import bootstrap_of
from ..resources.platform import MECHANISM


def platform_client(kube: Kube, cluster: Cluster) -> ClientConfig:
    """The operator's connections. ``kube``: has the Secrets."""
    platform = cluster.status.platform
    if platform is None:
        return ClientConfig(bootstrap_of(cluster))
    return ClientConfig(platform.bootstrap, with_password(kube, cluster, platform.secret))


@dataclass(frozen=True, slots=True)
class PodAccess:
    """How pods of ours connect to a Cluster: where, and whether as a user of their own."""

    bootstrap: str
    has_login: bool = False


def pods_connect(cluster: Cluster) -> PodAccess:
    """They log in at the listener of the operator as soon as every broker has it, whether or not the Internal listener
    is still open: so nothing changes for them when it is closed."""
    platform = cluster.status.platform
    if platform is None:
        return PodAccess(bootstrap_of(cluster))
    return PodAccess(platform.bootstrap, has_login=True)


def with_password(kube: Kube, cluster: Cluster, secret: str, key: str = "password") -> Security:
    """The operator's login. Each connection reads the password anew from that key of the Secret."""
    where = f"the operator's password for Cluster {cluster.name}"
    username = Credential(where, "the operator", value=OPERATOR_USER)
    password = SecretCredential.of(kube, cluster.namespace, secret, key, where)
    return Security(sasl=Sasl(MECHANISM.label, username, password))
