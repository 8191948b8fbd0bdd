"""Administration of topics, groups and configuration, as one typed class.

    admin = millstream.Admin("localhost:9092")
    admin.create_topic("flights", partitions=4)

Each call is one function of `topics`, `groups`, `resets`, `configs` or `clusters`; their records are the results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal

from millstream.client_config import DEFAULT_BOOTSTRAP
from millstream.clusters import ClusterInfo, describe_cluster
from millstream.configs import BROKER, TOPIC, Resource, Setting, alter_configs, describe_configs
from millstream.connection import Cluster, cluster_of
from millstream.errors import BadInput, Failed
from millstream.groups import (
    Group,
    GroupDetails,
    committed_offsets,
    delete_groups,
    describe_group,
    list_groups,
)
from millstream.resets import Move, Target, plan_reset, reset
from millstream.topics import (
    Topic,
    TopicDetails,
    alter_topic,
    create_topic,
    delete_topics,
    describe_topic,
    list_topics,
    watermarks,
)


class Admin:
    """Administers a cluster. Every call may raise Unreachable, or Failed with the brokers' reason; each names more."""

    def __init__(
        self, bootstrap: str | Cluster = DEFAULT_BOOTSTRAP, *, config: Mapping[str, object] | None = None
    ) -> None:
        """``config``: librdkafka's settings, such as those of TLS and SASL."""
        self.cluster = cluster_of(bootstrap, config)

    def describe_cluster(self) -> ClusterInfo:
        """The cluster's id, brokers and health."""
        return describe_cluster(self.cluster)

    # Topics

    def list_topics(self, *, internal: bool = False) -> list[Topic]:
        """All topics by name; the brokers' own topics only with ``internal``."""
        return list_topics(self.cluster, internal=internal)

    def describe_topic(self, name: str) -> TopicDetails:
        """Partitions, replicas, offsets and own configuration. UnknownTopic."""
        return describe_topic(self.cluster, name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; omitted counts take the brokers' defaults."""
        create_topic(
            self.cluster, name,
            partitions=partitions, replication_factor=replication_factor, config=config, validate_only=validate_only,
        )  # fmt: skip

    def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        set_configs: Mapping[str, str] | None = None,
        delete_configs: Sequence[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Add partitions up to a total, set and reset configuration; everything is validated first. UnknownTopic."""
        alter_topic(
            self.cluster, name, partitions=partitions,
            set_configs=set_configs, delete_configs=delete_configs, validate_only=validate_only,
        )  # fmt: skip

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records. UnknownTopic."""
        self.cluster.partitions(name)
        if why := delete_topics(self.cluster, [name])[name]:
            raise Failed(f"topic {name} was not deleted", why)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """By partition: the first offset, and the offset after the last record. UnknownTopic, NoLeader."""
        numbers = self.cluster.led_partitions(topic)
        found = watermarks(self.cluster, [(topic, number) for number in numbers])
        return {number: found[topic, number] for number in numbers}

    # Groups

    def list_groups(self) -> list[Group]:
        """All groups by name."""
        return list_groups(self.cluster)

    def describe_group(self, name: str) -> GroupDetails:
        """State, members, positions and lag. UnknownGroup."""
        return describe_group(self.cluster, name)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Committed offsets by topic and partition; empty for an unknown group."""
        return committed_offsets(self.cluster, group)

    def reset_group(
        self,
        name: str,
        to: int | datetime | Literal["earliest", "latest"],
        *,
        topics: Collection[str] = (),
        dry_run: bool = False,
    ) -> list[Move]:
        """Set the positions of a group without members: an offset, a time (with a zone), the start or the end.

        Offsets stay within the log. Without ``topics``, resets all topics in which the group has offsets. UnknownGroup;
        Failed while it has members.
        """
        if isinstance(to, datetime):
            if to.tzinfo is None:
                raise BadInput(f"to: {to} has no time zone", "give one, such as tzinfo=datetime.UTC")
            target = Target("datetime", int(to.timestamp() * 1000))
        elif to == "earliest" or to == "latest":
            target = Target(to)
        elif type(to) is int and to >= 0:
            target = Target("offset", to)
        else:
            raise BadInput(
                f"to: {to!r} is not allowed", 'write an offset, "earliest", "latest" or a datetime'
            )
        moves = plan_reset(self.cluster, name, target, topics)
        if not dry_run:
            reset(self.cluster, name, moves)
        return moves

    def delete_group(self, name: str) -> None:
        """Delete a group without members and its committed offsets. UnknownGroup, Failed."""
        describe_group(self.cluster, name)
        if why := delete_groups(self.cluster, [name])[name]:
            raise Failed(f"group {name} was not deleted", why)

    # Configuration

    def topic_config(self, topic: str) -> list[Setting]:
        """All settings of a topic by key, with their sources. UnknownTopic."""
        return describe_configs(self.cluster, Resource(TOPIC, topic))

    def broker_config(self, broker: int) -> list[Setting]:
        """All settings of a broker by key. BadInput if it is not running."""
        return describe_configs(self.cluster, Resource(BROKER, str(broker)))

    def alter_broker_config(
        self,
        broker: int,
        set_configs: Mapping[str, str],
        delete_configs: Sequence[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Set keys of a broker, and reset others to their default, all or none."""
        resource = Resource(BROKER, str(broker))
        alter_configs(self.cluster, resource, set_configs, delete_configs, validate_only=validate_only)
