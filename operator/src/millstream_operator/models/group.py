"""ConsumerGroup: the topics a group reads, and its progress."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from .base import ClusterRef, DeletionPolicy, Gauge, Lag, Resource, Spec, Status, Timestamp, TopicName
from .conditions import Condition
from .workload import Workload


class MaxLag(Spec, frozen=True):
    records: int | None = None
    seconds: int | None = None


class ResetOffset(Spec, frozen=True):
    topic: TopicName
    partition: int
    offset: int


class Reset(Spec, frozen=True):
    request_id: str
    to: Literal["Earliest", "Latest", "Timestamp", "Offsets", "Shift"]
    timestamp: Timestamp | None = None
    offsets: tuple[ResetOffset, ...] | None = None
    shift: int | None = None
    topics: tuple[TopicName, ...] | None = None
    on_out_of_range: Literal["Clamp", "Refuse"] = "Clamp"


class ConsumerGroupSpec(Spec, frozen=True):
    cluster_ref: ClusterRef
    group_id: str | None = None
    topics: tuple[TopicName, ...] = ()
    start_at: Literal["Earliest", "Latest"] | None = None
    max_lag: MaxLag | None = None
    stuck_after_seconds: int = 300
    reset: Reset | None = None
    workload: Workload | None = None
    deletion_policy: DeletionPolicy = "Retain"


class Member(Status, frozen=True):
    client_id: str = ""
    host: str = ""
    partitions: tuple[str, ...] = ()
    partition_count: int | None = None


class TopicLag(Status, frozen=True):
    topic: str
    topic_id: str | None = None
    partitions: int | None = None
    lag: Gauge | None = None


class Standstill(Status, frozen=True):
    """The time since which a group has committed nothing.

    ``positions`` is a digest of its committed positions; ``records`` is its lag at that time.
    """

    since: Timestamp
    positions: str
    records: int


class ResetTopic(Status, frozen=True):
    """Positions by partition; -1 if there was none, or if the reset sets none."""

    topic: TopicName
    topic_id: str | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class LastReset(Status, frozen=True):
    """A reset that began. ``Running`` is recorded before any position is committed."""

    request_id: str
    state: Literal["Running", "Done", "Refused", "Cancelled"]
    time: Timestamp
    message: str | None = None
    topics: tuple[ResetTopic, ...] = ()


class ConsumerGroupStatus(Status, frozen=True):
    observed_generation: int | None = None
    state: str | None = None
    member_count: int | None = None
    members: tuple[Member, ...] | None = None
    lag: Lag | None = None
    topics: tuple[TopicLag, ...] | None = None
    stuck: Standstill | None = None
    last_reset: LastReset | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    selector: str | None = None
    conditions: tuple[Condition, ...] | None = None


class ConsumerGroup(Resource, frozen=True):
    KIND, PLURAL = "ConsumerGroup", "consumergroups"
    CLAIMS, HELD = "groupId", True
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = field(default_factory=ConsumerGroupStatus)

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.name
