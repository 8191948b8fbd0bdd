"""MirrorMaker: which topics of which clusters go where."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from ..conditions import Condition
from ..patterns import refusal
from .base import Bootstrap, ClusterRef, Lag, Name, Resource, Spec, Status


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
                if why := refusal(pattern):
                    raise ValueError(
                        f"{where}: {pattern!r} is not a regular expression in RE2's syntax: {why}"
                    )


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


class MirrorMaker(Resource, frozen=True):
    KIND, PLURAL = "MirrorMaker", "mirrormakers"
    spec: MirrorMakerSpec
    status: MirrorMakerStatus = field(default_factory=MirrorMakerStatus)
