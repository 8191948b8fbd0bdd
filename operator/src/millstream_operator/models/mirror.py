"""MirrorMaker: source clusters, their topics, and the target cluster."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from ..conditions import Condition
from ..patterns import refusal
from .base import ClusterRef, Lag, Quantity, Resource, Spec, Status
from .pods import PodTemplate, Resources


class MirrorSource(Spec, frozen=True):
    name: str
    cluster_ref: ClusterRef | None = None
    bootstrap: str | None = None


class MirrorTarget(Spec, frozen=True):
    cluster_ref: ClusterRef | None = None
    bootstrap: str | None = None


class MirrorPatterns(Spec, frozen=True):
    """Of names. They use RE2's syntax, which no CRD can validate."""

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


class MirrorMakerSpec(Spec, frozen=True):
    sources: tuple[MirrorSource, ...]
    target: MirrorTarget
    topics: MirrorPatterns
    groups: MirrorPatterns | None = None
    mode: Literal["Aggregate"] = "Aggregate"
    naming: Literal["Same", "Prefixed"] = "Same"
    on_gap: Literal["Stop", "SkipToEarliest"] = "SkipToEarliest"
    replicas: int = 1
    resources: WorkerResources = field(default_factory=WorkerResources)
    template: PodTemplate[Literal["mirror"]] = field(default_factory=PodTemplate)


class MirrorSourceStatus(Status, frozen=True):
    name: str
    reachable: bool | None = None
    topics: int | None = None
    groups: int | None = None
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


class MirrorMaker(Resource, frozen=True):
    KIND, PLURAL = "MirrorMaker", "mirrormakers"
    spec: MirrorMakerSpec
    status: MirrorMakerStatus = field(default_factory=MirrorMakerStatus)
