"""ConsumerGroup: what a group reads, and how far it is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from ..conditions import Condition
from .base import ClusterRef, DeletionPolicy, Lag, Natural, Resource, Spec, Status, TopicName


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


class ConsumerGroup(Resource, frozen=True):
    KIND, PLURAL = "ConsumerGroup", "consumergroups"
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = field(default_factory=ConsumerGroupStatus)

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.name
