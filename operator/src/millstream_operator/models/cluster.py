"""Cluster: the brokers, their volumes, their ZooKeeper, and where clients connect."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, field

from ..conditions import Condition
from ..quantity import QuantityError, parse_quantity
from .base import DeletionPolicy, Port, Quantity, Resource, Spec, Status
from .pods import PodTemplate


def _check_size(size: Quantity) -> None:
    try:
        value = parse_quantity(size)
    except QuantityError as error:
        raise ValueError(f"size: {error}") from None
    if value <= 0:
        raise ValueError(f"size: {size!r} is not allowed: expected a size greater than 0, for example 10Gi")


class Storage(Spec, frozen=True):
    size: Quantity = "10Gi"
    class_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    deletion_policy: DeletionPolicy = "Retain"

    def __post_init__(self) -> None:
        _check_size(self.size)


class Resources(Spec, frozen=True):
    requests: dict[str, Quantity] = field(default_factory=lambda: {"cpu": "250m", "memory": "128Mi"})
    limits: dict[str, Quantity] = field(default_factory=lambda: {"memory": "512Mi"})


class Rack(Spec, frozen=True):
    topology_key: Annotated[str, Meta(min_length=1, max_length=316)] = "topology.kubernetes.io/zone"


class Brokers(Spec, frozen=True):
    replicas: Annotated[int, Meta(ge=1, le=1000)] = 1
    rack: Rack | None = None
    storage: Storage = field(default_factory=Storage)
    resources: Resources = field(default_factory=Resources)
    template: PodTemplate = field(default_factory=PodTemplate)


class ZooKeeperStorage(Spec, frozen=True):
    size: Quantity = "1Gi"

    def __post_init__(self) -> None:
        _check_size(self.size)


class ZooKeeper(Spec, frozen=True):
    replicas: Literal[1, 3] | None = None
    storage: ZooKeeperStorage = field(default_factory=ZooKeeperStorage)
    connect: Annotated[str, Meta(min_length=3, max_length=1024)] | None = None

    def __post_init__(self) -> None:
        if (self.replicas is None) == (self.connect is None):
            raise ValueError("exactly one of replicas and connect is required")


class Listener(Spec, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$")]
    type: Literal["Internal", "NodePort", "LoadBalancer"]
    port: Port
    node_port: Port | None = None

    def __post_init__(self) -> None:
        if self.node_port is not None and self.type != "NodePort":
            raise ValueError("nodePort is allowed with type NodePort only")
        if self.port == 9404:
            raise ValueError("port: 9404 is taken by health and metrics")


_CONFIG_KEY = re.compile(r"[a-zA-Z0-9._-]+")


class ClusterSpec(Spec, frozen=True):
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    brokers: Brokers = field(default_factory=Brokers)
    zookeeper: ZooKeeper | None = None
    rebalance: Literal["Automatic", "Manual"] = "Manual"
    listeners: Annotated[tuple[Listener, ...], Meta(max_length=8)] = ()
    config: dict[str, str] = field(default_factory=dict)
    allowed_namespaces: tuple[
        Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")], ...
    ] = ()

    def __post_init__(self) -> None:
        for key in self.config:
            if not _CONFIG_KEY.fullmatch(
                key
            ):  # anything else could end a line of server.properties and begin another
                raise ValueError(
                    f"config: {key!r} is not a key: letters, digits, '.', '_' and '-' are allowed"
                )
        if self.brokers.replicas > 1 and self.zookeeper is None:
            raise ValueError("zookeeper: required with more than one broker, for example {replicas: 3}")
        if not self.listeners:
            return
        if sum(listener.type == "Internal" for listener in self.listeners) != 1:
            raise ValueError("listeners: exactly one of type Internal is required")
        for what in ("name", "port"):
            values = [getattr(listener, what) for listener in self.listeners]
            if len(set(values)) < len(values):
                raise ValueError(f"listeners: each needs a {what} of its own")

    @property
    def internal(self) -> Listener:
        """The listener that everything inside uses."""
        inside = [listener for listener in self.listeners if listener.type == "Internal"]
        return inside[0] if inside else Listener(name="internal", type="Internal", port=9092)


class BrokerCount(Status, frozen=True):
    desired: int | None = None
    ready: int | None = None


class ListenerStatus(Status, frozen=True):
    name: str
    bootstrap: str | None = None


class ClusterStatus(Status, frozen=True):
    observed_generation: int | None = None
    cluster_id: str | None = None
    brokers: BrokerCount | None = None
    bootstrap: str | None = None
    listeners: tuple[ListenerStatus, ...] | None = None
    config_keys: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class Cluster(Resource, frozen=True):
    KIND, PLURAL = "Cluster", "clusters"
    spec: ClusterSpec = field(default_factory=ClusterSpec)
    status: ClusterStatus = field(default_factory=ClusterStatus)
