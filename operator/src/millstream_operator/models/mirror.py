"""MirrorMaker: source clusters, their topics, and the target cluster."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from .base import (
    ClusterRef,
    Gauge,
    Lag,
    OverlappingRotate,
    Quantity,
    Resource,
    Spec,
    Status,
    Timestamp,
    TopicName,
)
from .conditions import Condition
from .patterns import refusal
from .pods import PodTemplate, Resources


class SecretKey(Spec, frozen=True):
    """One value of a Secret in the MirrorMaker's namespace."""

    name: str
    key: str


class SecretValue(Spec, frozen=True):
    secret_key_ref: SecretKey


class Username(Spec, frozen=True):
    value: str | None = None
    secret_key_ref: SecretKey | None = None


class MirrorTls(Spec, frozen=True):
    ca_certificates: tuple[SecretValue, ...] = ()
    certificate: SecretValue | None = None
    key: SecretValue | None = None
    verify_hostname: bool = True


class MirrorSasl(Spec, frozen=True):
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: Username
    password: SecretValue


class MirrorTarget(Spec, frozen=True):
    cluster_ref: ClusterRef | None = None
    bootstrap: str | None = None
    tls: MirrorTls | None = None
    sasl: MirrorSasl | None = None


class MirrorSource(MirrorTarget, frozen=True, kw_only=True):
    name: str
    max_bytes_per_second: int | None = None
    rack: str | None = None


class MirrorPatterns(Spec, frozen=True):
    """Patterns for names. They use RE2's syntax, which no CRD can validate."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrongs = [
            f"{where}: {pattern!r} is not a regular expression in RE2's syntax: {why}"
            for where in ("include", "exclude")
            for pattern in getattr(self, where)
            if (why := refusal(pattern))
        ]
        if wrongs:
            raise ValueError("; ".join(wrongs))


class WorkerResources(Resources, frozen=True):
    requests: dict[str, Quantity] = field(default_factory=lambda: {"cpu": "100m", "memory": "96Mi"})
    limits: dict[str, Quantity] = field(default_factory=lambda: {"memory": "512Mi"})


class Rejoin(Spec, frozen=True):
    request_id: str


class Promote(Spec, frozen=True):
    """``topics`` are the target's names; None means all mirrored topics."""

    request_id: str
    topics: tuple[TopicName, ...] | None = None


class MirrorMakerSpec(Spec, frozen=True):
    sources: tuple[MirrorSource, ...]
    target: MirrorTarget
    topics: MirrorPatterns
    groups: MirrorPatterns | None = None
    configs: MirrorPatterns | None = None
    mode: Literal["Aggregate", "Identity"] = "Aggregate"
    naming: Literal["Same", "Prefixed"] = "Same"
    on_gap: Literal["Stop", "SkipToEarliest"] = "SkipToEarliest"
    rejoin: Rejoin | None = None
    promote: Promote | None = None
    rotate: OverlappingRotate | None = None
    replicas: int = 1
    resources: WorkerResources = field(default_factory=WorkerResources)
    template: PodTemplate[Literal["mirror"]] = field(default_factory=PodTemplate)


class Rate(Status, frozen=True):
    records: Gauge | None = None
    bytes: Gauge | None = None


class SetAside(Status, frozen=True):
    topic: str
    partition: int
    common_offset: int | None = None
    records: int | None = None
    copied_to: str | None = None


class MirrorSourceStatus(Status, frozen=True):
    name: str
    reachable: bool | None = None
    topics: int | None = None
    groups: int | None = None
    lag: Lag | None = None
    rate: Rate | None = None
    set_aside: tuple[SetAside, ...] | None = None
    last_error: str | None = None


class PromotedTopic(Status, frozen=True):
    """The recovery point of a topic.

    ``ends`` and ``source_ends`` are the ends of the mirrored records and of the source's log, by partition; -1 if
    unknown. The numbers are left out while the promotion runs.
    """

    topic: TopicName
    topic_id: str
    source: str | None = None
    ends: tuple[int, ...] = ()
    source_ends: tuple[int, ...] = ()
    source_ends_from: Literal["Source", "LastKnown"] | None = None
    source_ends_at: Timestamp | None = None
    not_mirrored: int | None = None


class LastPromotion(Status, frozen=True):
    """A promotion that began. ``Running`` is recorded before any topic is promoted.

    ``topics`` lists first the requested topics, in the end those whose recovery point is shown. ``all_topics`` tells
    whether all were requested.
    """

    request_id: str
    state: Literal["Running", "Done", "Refused", "Cancelled"]
    time: Timestamp
    all_topics: bool | None = None
    message: str | None = None
    topic_count: int | None = None
    partition_count: int | None = None
    not_mirrored: int | None = None
    unknown_partitions: int | None = None
    topics: tuple[PromotedTopic, ...] = ()


class MirrorMakerStatus(Status, frozen=True):
    observed_generation: int | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    selector: str | None = None
    topics: int | None = None
    lag: Lag | None = None
    sources: tuple[MirrorSourceStatus, ...] | None = None
    last_promotion: LastPromotion | None = None
    conditions: tuple[Condition, ...] | None = None


class MirrorMaker(Resource, frozen=True):
    KIND, PLURAL = "MirrorMaker", "mirrormakers"
    spec: MirrorMakerSpec
    status: MirrorMakerStatus = field(default_factory=MirrorMakerStatus)
