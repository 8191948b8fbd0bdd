"""How the platform itself connects to the brokers of a Cluster: this is the only module that knows."""

from __future__ import annotations

from millstream_kafka.client.security import Credential, Sasl, Security, Tls

from ..kafka.client_config import ClientConfig
from ..kubernetes.client import Kube
from ..kubernetes.credentials import SecretCredential
from ..models import Cluster
from ..models.cluster import PlatformStatus
from ..resources.broker_config import OPERATOR_USER
from ..resources.certificates import CA
from ..resources.cluster import bootstrap_of
from ..resources.platform import MECHANISM
from ..resources.pod_access import PodAccess


def platform_client(kube: Kube, cluster: Cluster) -> ClientConfig:
    """The operator's connections. ``kube``: has the Secrets."""
    platform = cluster.status.platform
    if platform is None:
        return ClientConfig(bootstrap_of(cluster))
    return ClientConfig(platform.bootstrap, with_password(kube, cluster, platform))


def pods_connect(cluster: Cluster) -> PodAccess:
    """They log in at the listener of the operator as soon as every broker has it, whether or not the Internal listener
    is still open: so nothing changes for them when it is closed."""
    platform = cluster.status.platform
    if platform is None:
        return PodAccess(bootstrap_of(cluster))
    return PodAccess(platform.bootstrap, has_login=True, has_tls=platform.ca_secret is not None)


def with_password(kube: Kube, cluster: Cluster, platform: PlatformStatus, key: str = "password") -> Security:
    """The operator's login. Each connection reads the password anew from that key of the Secret, and with TLS the
    authorities to trust."""
    where = f"the operator's password for Cluster {cluster.name}"
    username = Credential(where, "the operator", value=OPERATOR_USER)
    password = SecretCredential.of(kube, cluster.namespace, platform.secret, key, where)
    return Security(_trust(kube, cluster, platform.ca_secret), Sasl(MECHANISM.label, username, password))


def _trust(kube: Kube, cluster: Cluster, secret: str | None) -> Tls | None:
    if secret is None:
        return None
    where = f"the authorities of Cluster {cluster.name}"
    return Tls([SecretCredential.of(kube, cluster.namespace, secret, CA, where)])
