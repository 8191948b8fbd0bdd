"""Cluster: the brokers, their volumes, their ZooKeeper, and the addresses for clients."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from msgspec import field
from msgspec.structs import replace

from .base import DeletionPolicy, Quantity, Resource, Rotate, Spec, Status
from .conditions import Condition
from .listeners import SECURE, Listener, ListenerDefaults, NetworkPolicy
from .maintenance import Maintenance
from .pods import PodTemplate, Resources


class Storage(Spec, frozen=True):
    size: Quantity = "10Gi"
    class_name: str | None = None
    deletion_policy: DeletionPolicy = "Retain"


class BrokerResources(Resources, frozen=True):
    requests: dict[str, Quantity] = field(default_factory=lambda: {"cpu": "250m", "memory": "128Mi"})
    limits: dict[str, Quantity] = field(default_factory=lambda: {"memory": "512Mi"})


class Rack(Spec, frozen=True):
    topology_key: str = "topology.kubernetes.io/zone"


class Brokers(Spec, frozen=True):
    replicas: int = 1
    rack: Rack | None = None
    storage: Storage = field(default_factory=Storage)
    resources: BrokerResources = field(default_factory=BrokerResources)
    template: PodTemplate[Literal["broker"]] = field(default_factory=PodTemplate)


class ZooKeeperStorage(Spec, frozen=True):
    size: Quantity = "1Gi"


class ZooKeeperResources(Resources, frozen=True):
    requests: dict[str, Quantity] = field(default_factory=lambda: {"cpu": "100m", "memory": "256Mi"})
    limits: dict[str, Quantity] = field(default_factory=lambda: {"memory": "512Mi"})


class ZooKeeperPassword(Spec, frozen=True):
    secret_name: str
    password: str


class ZooKeeperAuthentication(Spec, frozen=True):
    type: Literal["DigestMd5"]
    username: str
    password_secret: ZooKeeperPassword


class TrustedCertificate(Spec, frozen=True):
    secret_name: str
    certificate: str


class ZooKeeperTls(Spec, frozen=True):
    trusted_certificates: tuple[TrustedCertificate, ...]


class ZooKeeper(Spec, frozen=True):
    replicas: Literal[1, 3] | None = None
    storage: ZooKeeperStorage = field(default_factory=ZooKeeperStorage)
    resources: ZooKeeperResources = field(default_factory=ZooKeeperResources)
    template: PodTemplate[Literal["zookeeper"]] = field(default_factory=PodTemplate)
    connect: str | None = None
    authentication: ZooKeeperAuthentication | None = None
    tls: ZooKeeperTls | None = None


class SecuredZooKeeper(ZooKeeper, frozen=True, kw_only=True):
    """An ensemble as brokers use it now, where they log in (reconcile/cluster/zookeeper_login.py).

    ``login``: identifies the user and password. ``logs_in``: whether brokers use it already. ``sets_acls``: whether
    they keep others from their nodes.
    """

    login: str
    logs_in: bool = False
    sets_acls: bool = False

    @property
    def given(self) -> ZooKeeper:
        """As the user wrote it."""
        return ZooKeeper(**{name: getattr(self, name) for name in ZooKeeper.__struct_fields__})


class ClusterAuthorization(Spec, frozen=True):
    type: Literal["Simple"]
    super_users: tuple[str, ...] = ()


class RotateAuthority(Spec, frozen=True):
    request_id: str


class CertificateAuthority(Spec, frozen=True):
    validity_days: int = 3650
    overlap_days: int = 7
    secret_name: str | None = None
    rotate: RotateAuthority | None = None


UNSTATED = "millstream.dev/unstated-listeners"
"""Annotation of a Cluster, written once when it is new: what listeners are that do not state it."""


class Unstated(StrEnum):
    SECURE = "Secure"
    """TLS and passwords."""
    OPEN = "Open"
    """As in Clusters from before `SECURE` was there."""


class PlatformTls(StrEnum):
    """How far TLS is between brokers, and of the operator: values of an annotation of pods."""

    NONE = ""
    PREPARED = "prepared"
    """Brokers have the platform's listener, and certificates to connect to brokers that are further."""
    ON = "on"
    """The brokers' own listener has TLS, too."""

    @property
    def has_listener(self) -> bool:
        """Whether brokers have the platform's listener, which always has TLS."""
        return self is not PlatformTls.NONE


class ClusterSpec(Spec, frozen=True):
    image: str | None = None
    brokers: Brokers = field(default_factory=Brokers)
    zookeeper: ZooKeeper | None = None
    rebalance: Literal["Automatic", "Manual"] = "Manual"
    maintenance: Maintenance | None = None
    listeners: tuple[Listener, ...] = ()
    listener_defaults: ListenerDefaults = field(default_factory=ListenerDefaults)
    certificate_authority: CertificateAuthority = field(default_factory=CertificateAuthority)
    network_policy: NetworkPolicy = field(default_factory=NetworkPolicy)
    authorization: ClusterAuthorization | None = None
    config: dict[str, str] = field(default_factory=dict)
    allowed_namespaces: tuple[str, ...] = ()
    rotate: Rotate | None = None
    platform_login: ClassVar[bool] = False
    """Whether brokers ask the operator for a login."""
    platform_tls: ClassVar[PlatformTls] = PlatformTls.NONE

    @property
    def internal(self) -> Listener:
        """The listener for clients inside Kubernetes."""
        inside = [listener for listener in self.listeners if listener.type == "Internal"]
        return inside[0] if inside else Listener(name="internal", type="Internal", port=9092)

    @property
    def completed(self) -> ClusterSpec:
        """The spec with its defaults in each listener. An added one that stays open is not written out, so the
        configuration of brokers is the same whether or not a spec states what it has."""
        internal = self.internal.completed(self.listener_defaults)
        given = self.listeners or (() if internal.is_open else (internal,))
        listeners = tuple(listener.completed(self.listener_defaults) for listener in given)
        return self if listeners == self.listeners else replace(self, listeners=listeners)

    @property
    def own_authority(self) -> str | None:
        """The Secret with an authority of the user's own."""
        return self.certificate_authority.secret_name

    @property
    def authority_request(self) -> str:
        """The requestId of the last wish for a new authority; "" for none."""
        rotate = self.certificate_authority.rotate
        return rotate.request_id if rotate is not None else ""

    @property
    def is_encrypted(self) -> bool:
        """Whether any listener speaks TLS, the platform's included."""
        return self.platform_tls.has_listener or any(listener.is_encrypted for listener in self.listeners)

    @property
    def administrators(self) -> frozenset[str]:
        """Users who may do everything, by `authorization`, or by a `super.users` of the configuration."""
        principals = (each.strip().partition(":") for each in self.config.get("super.users", "").split(";"))
        named = () if self.authorization is None else self.authorization.super_users
        return frozenset((*named, *(name for kind, _, name in principals if kind == "User")))


class SpecWithLogin(ClusterSpec, frozen=True):
    """A spec as the operator carries it out where it logs in (reconcile/cluster/platform.py)."""

    platform_login: ClassVar[bool] = True


class SpecPrepared(SpecWithLogin, frozen=True):
    """The same, on the way to TLS."""

    platform_tls: ClassVar[PlatformTls] = PlatformTls.PREPARED


class SpecWithTls(SpecWithLogin, frozen=True):
    """The same, with TLS between brokers."""

    platform_tls: ClassVar[PlatformTls] = PlatformTls.ON


class BrokerCount(Status, frozen=True):
    desired: int | None = None
    ready: int | None = None


class ListenerStatus(Status, frozen=True):
    name: str
    protocol: str | None = None
    ca_secret: str | None = None
    bootstrap: str | None = None
    addresses: tuple[str, ...] | None = None


class PlatformStatus(Status, frozen=True):
    """How the operator connects: where, and the Secret with its password. ``internal``: the Internal listener.

    ``ca_secret``: the Secret with the authorities to trust, None without TLS.
    """

    bootstrap: str
    secret: str
    internal: Literal["Open", "Closed"]
    ca_secret: str | None = None


class ClusterStatus(Status, frozen=True):
    observed_generation: int | None = None
    cluster_id: str | None = None
    brokers: BrokerCount | None = None
    bootstrap: str | None = None
    platform: PlatformStatus | None = None
    listeners: tuple[ListenerStatus, ...] | None = None
    config_keys: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class Cluster(Resource, frozen=True):
    KIND, PLURAL = "Cluster", "clusters"
    spec: ClusterSpec = field(default_factory=ClusterSpec)
    status: ClusterStatus = field(default_factory=ClusterStatus)

    @property
    def listener_defaults(self) -> ListenerDefaults:
        """Those of the spec, and in a Cluster that began with them the secure ones."""
        given = self.spec.listener_defaults
        return (
            given.completed(SECURE) if self.metadata.annotations.get(UNSTATED) == Unstated.SECURE else given
        )

    @property
    def completed(self) -> Cluster:
        """The Cluster with its defaults in each listener."""
        spec = replace(self.spec, listener_defaults=self.listener_defaults)
        return replace(self, spec=spec.completed)
