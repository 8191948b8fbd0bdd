"""The custom resources as frozen records, decoded from manifests, with the same defaults and bounds as ``crds/``.

The API server validates against the CRDs; these records validate again for what reads manifests without one (the local
runtime) and for objects stored under an older CRD. A spec refuses unknown fields, a status ignores them.

Errors are ``ManifestError`` with one line that names kind, resource, field, value and what is allowed::

    Topic flights: spec.partitions: 0 is not allowed: expected `int` >= 1
    Topic flights: spec.partitons: unknown field; allowed: clusterRef, config, deletionPolicy, partitions, …
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, field

from .conditions import Condition
from .explain import explain, shown
from .quantity import QuantityError, parse_quantity

GROUP = "millstream.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# https://kafka.apache.org/documentation/#basic_ops_add_topic and Topic.java: 249 characters, neither "." nor ".."
TopicName = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
ClusterName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
Bootstrap = Annotated[str, Meta(pattern=r"^[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*$", max_length=1024)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Port = Annotated[int, Meta(ge=1024, le=65535)]
Timestamp = Annotated[datetime, Meta(tz=True)]
Quantity = int | str
DeletionPolicy = Literal["Retain", "Delete"]


class ManifestError(ValueError):
    """A manifest that cannot be: one line for the user."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a user writes: unknown fields are errors."""


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the operator writes: what it does not know is left out."""


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Annotated[str, Meta(min_length=1, max_length=253)]
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class ClusterRef(Spec, frozen=True):
    name: ClusterName
    namespace: Name | None = None


# Cluster ---------------------------------------------------------------------------------------------------------


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


class TemplateMetadata(Spec, frozen=True):
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class PodTemplate(Spec, frozen=True):
    metadata: TemplateMetadata = field(default_factory=TemplateMetadata)
    spec: dict[str, Any] = field(default_factory=dict)


class Brokers(Spec, frozen=True):
    replicas: Annotated[int, Meta(ge=1, le=1000)] = 1
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
    type: Literal["Internal", "NodePort"]
    port: Port
    node_port: Port | None = None

    def __post_init__(self) -> None:
        if self.node_port is not None and self.type != "NodePort":
            raise ValueError("nodePort is allowed with type NodePort only")
        if self.port == 9404:
            raise ValueError("port: 9404 is taken by health and metrics")


class ClusterSpec(Spec, frozen=True):
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    brokers: Brokers = field(default_factory=Brokers)
    zookeeper: ZooKeeper | None = None
    listeners: Annotated[tuple[Listener, ...], Meta(max_length=8)] = ()
    config: dict[str, str] = field(default_factory=dict)
    allowed_namespaces: tuple[
        Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")], ...
    ] = ()

    def __post_init__(self) -> None:
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
    conditions: tuple[Condition, ...] | None = None


# Topic -----------------------------------------------------------------------------------------------------------


class TopicSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    topic_name: TopicName | None = None
    partitions: Annotated[int, Meta(ge=1, le=100000)] = 1
    replication_factor: Annotated[int, Meta(ge=1, le=1000)] = 1
    config: dict[str, str] = field(default_factory=dict)
    deletion_policy: DeletionPolicy = "Retain"


class TopicStatus(Status, frozen=True):
    observed_generation: int | None = None
    topic_id: str | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    under_replicated: int | None = None
    size_bytes: int | None = None
    config_keys: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


# ConsumerGroup ---------------------------------------------------------------------------------------------------


class MaxLag(Spec, frozen=True):
    records: Natural | None = None
    seconds: Natural | None = None


class ConsumerGroupSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    group_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    topics: Annotated[tuple[TopicName, ...], Meta(max_length=256)] = ()
    start_at: Literal["Earliest", "Latest"] | None = None
    max_lag: MaxLag | None = None
    deletion_policy: DeletionPolicy = "Retain"

    def __post_init__(self) -> None:
        if self.start_at is not None and not self.topics:
            raise ValueError("startAt: the topics it holds for are required in topics")


class Lag(Status, frozen=True):
    records: int | None = None
    seconds: int | None = None


class Member(Status, frozen=True):
    client_id: str = ""
    host: str = ""
    partitions: tuple[str, ...] = ()


class TopicLag(Status, frozen=True):
    topic: str
    partitions: int | None = None
    lag: int | None = None


class ConsumerGroupStatus(Status, frozen=True):
    observed_generation: int | None = None
    state: str | None = None
    member_count: int | None = None
    members: tuple[Member, ...] | None = None
    lag: Lag | None = None
    topics: tuple[TopicLag, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


# MirrorMaker -----------------------------------------------------------------------------------------------------


def _check_endpoint(cluster_ref: ClusterRef | None, bootstrap: str | None) -> None:
    if (cluster_ref is None) == (bootstrap is None):
        raise ValueError("exactly one of clusterRef and bootstrap is required")


class MirrorSource(Spec, frozen=True):
    name: Name
    cluster_ref: ClusterRef | None = None
    bootstrap: Bootstrap | None = None

    def __post_init__(self) -> None:
        _check_endpoint(self.cluster_ref, self.bootstrap)


class MirrorTarget(Spec, frozen=True):
    cluster_ref: ClusterRef | None = None
    bootstrap: Bootstrap | None = None

    def __post_init__(self) -> None:
        _check_endpoint(self.cluster_ref, self.bootstrap)


Pattern = Annotated[str, Meta(min_length=1, max_length=1024)]


class MirrorTopics(Spec, frozen=True):
    include: Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=256)]
    exclude: Annotated[tuple[Pattern, ...], Meta(max_length=256)] = ()

    def __post_init__(self) -> None:
        for where in ("include", "exclude"):
            for pattern in getattr(self, where):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ValueError(f"{where}: {pattern!r} is not a regular expression: {error}") from None


class MirrorMakerSpec(Spec, frozen=True):
    sources: Annotated[tuple[MirrorSource, ...], Meta(min_length=1, max_length=16)]
    target: MirrorTarget
    topics: MirrorTopics
    mode: Literal["Aggregate"] = "Aggregate"
    naming: Literal["Same", "Prefixed"] = "Same"
    replicas: Annotated[int, Meta(ge=0, le=256)] = 1

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError("sources: each needs a name of its own")


class MirrorSourceStatus(Status, frozen=True):
    name: str
    reachable: bool | None = None
    topics: int | None = None
    lag: Lag | None = None
    last_error: str | None = None


class MirrorMakerStatus(Status, frozen=True):
    observed_generation: int | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    selector: str | None = None
    topics: int | None = None
    lag: Lag | None = None
    sources: tuple[MirrorSourceStatus, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


# BatchLoad -------------------------------------------------------------------------------------------------------


class PartitionOffset(Spec, frozen=True):
    topic: TopicName
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    offset: Natural


def _check_position(
    position: str, timestamp: datetime | None, offsets: tuple[PartitionOffset, ...] | None
) -> None:
    if (position == "Timestamp") != (timestamp is not None):
        raise ValueError("timestamp is required with position Timestamp, and allowed with it only")
    if (position == "Offsets") != (offsets is not None):
        raise ValueError("offsets are required with position Offsets, and allowed with it only")


class From(Spec, frozen=True):
    position: Literal["Committed", "Earliest", "Timestamp", "Offsets"] = "Earliest"
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None

    def __post_init__(self) -> None:
        _check_position(self.position, self.timestamp, self.offsets)


class Until(Spec, frozen=True):
    position: Literal["Latest", "Timestamp", "Offsets"] = "Latest"
    timestamp: Timestamp | None = None
    offsets: tuple[PartitionOffset, ...] | None = None

    def __post_init__(self) -> None:
        _check_position(self.position, self.timestamp, self.offsets)


class Value(Spec, frozen=True):
    format: Literal["JSON", "Binary"]
    schema: Annotated[str, Meta(min_length=1, max_length=65536)] | None = None

    def __post_init__(self) -> None:
        if (self.format == "JSON") != (self.schema is not None):
            raise ValueError("schema is required with format JSON, and allowed with it only")


class Output(Spec, frozen=True):
    path: Annotated[str, Meta(pattern=r"^(/|[a-z][a-z0-9+.-]*://).+$", max_length=1024)]
    format: Literal["Parquet"] = "Parquet"
    volume_claim_name: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")] | None = None
    partition_by: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=16)
    ] = ()

    def __post_init__(self) -> None:
        if self.volume_claim_name is not None and not self.path.startswith("/"):
            raise ValueError("path: with volumeClaimName, a folder (/…) is required")


Memory = Annotated[str, Meta(pattern=r"^[0-9]+[kmgt]$", max_length=12)]
Cores = Annotated[int, Meta(ge=1, le=64)]


class SparkDriver(Spec, frozen=True):
    cores: Cores = 1
    memory: Memory = "1g"


class SparkExecutor(Spec, frozen=True):
    instances: Annotated[int, Meta(ge=1, le=1000)] = 1
    cores: Cores = 1
    memory: Memory = "1g"


class Spark(Spec, frozen=True):
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    driver: SparkDriver = field(default_factory=SparkDriver)
    executor: SparkExecutor = field(default_factory=SparkExecutor)
    conf: dict[str, str] = field(default_factory=dict)


class BatchLoadSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    topics: Annotated[tuple[TopicName, ...], Meta(min_length=1, max_length=64)]
    value: Value
    output: Output
    from_: From = field(name="from", default_factory=From)
    until: Until = field(default_factory=Until)
    min_records: Natural = 1
    runner: Literal["Job", "SparkApplication"] = "Job"
    spark: Spark = field(default_factory=Spark)


class Run(Status, frozen=True):
    name: str | None = None
    state: str | None = None  # Pending, Running, Succeeded, Failed
    rows: int | None = None
    start_time: str | None = None
    end_time: str | None = None
    error: str | None = None


class OffsetRange(Status, frozen=True):
    topic: str
    partition: int
    from_: int = field(name="from")
    until: int


class BatchLoadStatus(Status, frozen=True):
    observed_generation: int | None = None
    last_run: Run | None = None
    offsets: tuple[OffsetRange, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


# The resources ---------------------------------------------------------------------------------------------------


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What all kinds have; ``spec`` and ``status`` are typed by each kind."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]

    api_version: Literal["millstream.dev/v1alpha1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace


class Cluster(Resource, frozen=True):
    KIND, PLURAL = "Cluster", "clusters"
    spec: ClusterSpec = field(default_factory=ClusterSpec)
    status: ClusterStatus = field(default_factory=ClusterStatus)


class Topic(Resource, frozen=True):
    KIND, PLURAL = "Topic", "topics"
    spec: TopicSpec
    status: TopicStatus = field(default_factory=TopicStatus)

    @property
    def topic_name(self) -> str:
        return self.spec.topic_name or self.name


class ConsumerGroup(Resource, frozen=True):
    KIND, PLURAL = "ConsumerGroup", "consumergroups"
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = field(default_factory=ConsumerGroupStatus)

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.name


class MirrorMaker(Resource, frozen=True):
    KIND, PLURAL = "MirrorMaker", "mirrormakers"
    spec: MirrorMakerSpec
    status: MirrorMakerStatus = field(default_factory=MirrorMakerStatus)


class BatchLoad(Resource, frozen=True):
    KIND, PLURAL = "BatchLoad", "batchloads"
    spec: BatchLoadSpec
    status: BatchLoadStatus = field(default_factory=BatchLoadStatus)


KINDS: dict[str, type[Resource]] = {
    kind.KIND: kind for kind in (Cluster, Topic, ConsumerGroup, MirrorMaker, BatchLoad)
}


def decode(manifest: object) -> Resource:
    """A manifest (a YAML or JSON document) as its record; raises ManifestError."""
    if not isinstance(manifest, Mapping):
        raise ManifestError(f"a manifest must be a mapping with apiVersion and kind, not {shown(manifest)}")
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if version != API_VERSION:
        raise ManifestError(f"apiVersion: {shown(version)} is not allowed: expected {API_VERSION}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ManifestError(f"kind: {shown(kind)} is not allowed: expected one of {', '.join(KINDS)}")
    return decode_as(KINDS[kind], manifest)


ResourceT = typing.TypeVar("ResourceT", bound=Resource)


def decode_as(cls: type[ResourceT], manifest: Mapping[str, Any]) -> ResourceT:
    """A manifest of a known kind."""
    try:
        return msgspec.convert(manifest, cls)
    except msgspec.ValidationError as error:
        raise ManifestError(explain(cls, cls.KIND, manifest, str(error))) from None


def encode_status(status: Status) -> dict[str, Any]:
    """A status as the API server takes it."""
    encoded: dict[str, Any] = msgspec.to_builtins(status)
    return encoded
