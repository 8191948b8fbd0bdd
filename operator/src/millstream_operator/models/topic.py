"""Topic: partitions, replicas and configuration of one topic."""

from __future__ import annotations

from msgspec import field

from .base import ClusterRef, DeletionPolicy, Gauge, Resource, Spec, Status, TopicName
from .conditions import Condition


class TopicSpec(Spec, frozen=True):
    """``partitions``, ``replication_factor``: None takes the brokers' defaults at creation, later no change."""

    cluster_ref: ClusterRef
    topic_name: TopicName | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    deletion_policy: DeletionPolicy = "Retain"


class TopicStatus(Status, frozen=True):
    observed_generation: int | None = None
    topic_id: str | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    under_replicated: int | None = None
    size_bytes: Gauge | None = None
    config_keys: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] | None = None


class Topic(Resource, frozen=True):
    KIND, PLURAL = "Topic", "topics"
    CLAIMS, HELD = "topicName", True
    spec: TopicSpec
    status: TopicStatus = field(default_factory=TopicStatus)

    @property
    def topic_name(self) -> str:
        return self.spec.topic_name or self.name
