"""ConsumerGroup: the topics a group reads, and its progress."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from ..conditions import Condition
from .base import ClusterRef, DeletionPolicy, Gauge, Lag, Resource, Spec, Status, TopicName


class MaxLag(Spec, frozen=True):
    records: int | None = None
    seconds: int | None = None


class ConsumerGroupSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    group_id: str | None = None
    topics: tuple[TopicName, ...] = ()
    start_at: Literal["Earliest", "Latest"] | None = None
    max_lag: MaxLag | None = None
    deletion_policy: DeletionPolicy = "Retain"


class Member(Status, frozen=True):
    client_id: str = ""
    host: str = ""
    partitions: tuple[str, ...] = ()


class TopicLag(Status, frozen=True):
    topic: str
    partitions: int | None = None
    lag: Gauge | None = None


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
    CLAIMS, HELD = "groupId", True
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = field(default_factory=ConsumerGroupStatus)

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.name
