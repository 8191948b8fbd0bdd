"""Consumer groups: list, describe, reset their offsets, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from millstream.commit_metadata import metadata_of
from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors, outcomes, results
from millstream.errors import Failed, UnknownGroup
from millstream.topics import list_offsets

DEAD = "DEAD"
IN_FLIGHT: Final = 200
"""Limit of requests in flight: all have `REQUEST_TIMEOUT_S`."""
MARK_PARTITION: Final = ("__consumer_offsets", 0)
MARK_PREFIX: Final = "millstream.dev/"
"""As in millstream_kafka.group_mark."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group at a glance; ``state`` in Kafka's words: Stable, Empty, PreparingRebalance, …"""

    group: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    client_id: str
    member_id: str
    host: str
    partitions: tuple[str, ...]
    """As TOPIC-PARTITION."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The group's progress in one partition. ``committed`` is -1 without a commit.

    ``lag`` is ``latest`` minus ``committed``, at least 0, as Kafka's own tools count. It is None without a commit.
    ``latest`` and ``lag`` are None while the partition has no leader.
    """

    topic: str
    partition: int
    committed: int
    latest: int | None
    lag: int | None
    client_id: str
    """The client id of the member that consumes it; "" without one."""


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group in full."""

    group: str
    state: str
    coordinator: int
    lag: int
    members: tuple[Member, ...]
    partitions: tuple[Progress, ...]


def list_groups(cluster: Cluster) -> list[Group]:
    """All groups by name."""
    with kafka_errors():
        listed = cluster.admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
    return sorted(
        (Group(group.group_id, _camel(group.state.name)) for group in listed.valid),
        key=lambda group: group.group,
    )


def describe_group(cluster: Cluster, name: str) -> GroupDetails:
    """One group; UnknownGroup if it has neither members nor committed offsets."""
    admin = cluster.admin
    described = results(admin.describe_consumer_groups([name], request_timeout=REQUEST_TIMEOUT_S))[name]
    members = tuple(
        Member(
            member.client_id,
            member.member_id,
            member.host.removeprefix("/"),
            tuple(f"{at.topic}-{at.partition}" for at in sorted(member.assignment.topic_partitions)),
        )
        for member in sorted(described.members, key=lambda member: (member.client_id, member.member_id))
    )
    committed = committed_offsets(cluster, name)
    if described.state.name == DEAD and not committed:
        raise unknown_group(name)
    consumers = {partition: member.client_id for member in members for partition in member.partitions}
    owned = {(topic, int(number)) for topic, _, number in (name.rpartition("-") for name in consumers)}
    progress = _progress(cluster, {**dict.fromkeys(owned, -1), **committed}, consumers)
    lag = sum(partition.lag or 0 for partition in progress)
    state, coordinator = _camel(described.state.name), described.coordinator
    return GroupDetails(name, state, coordinator.id if coordinator else -1, lag, members, progress)


def _progress(
    cluster: Cluster, committed: dict[tuple[str, int], int], consumers: dict[str, str]
) -> tuple[Progress, ...]:
    there = cluster.metadata().topics
    # Offsets outlive their topic.
    wanted = sorted(key for key in committed if key[0] in there and key[1] in there[key[0]].partitions)
    led = [(t, p) for t, p in wanted if there[t].partitions[p].leader >= 0]
    specs: Any = OffsetSpec  # untyped
    ends = list_offsets(cluster, led, specs.latest())
    found = []
    for topic, partition in wanted:
        latest = ends.get((topic, partition))
        offset = max(committed[topic, partition], -1)
        lag = None if latest is None or offset < 0 else max(latest - offset, 0)
        client = consumers.get(f"{topic}-{partition}", "")
        found.append(Progress(topic, partition, offset, latest, lag, client))
    return tuple(found)


def committed_offsets(cluster: Cluster, name: str) -> dict[tuple[str, int], int]:
    """The group's committed offsets, by topic and partition; empty for an unknown group."""
    return committed_by_group(cluster, [name])[name]


def committed_by_group(cluster: Cluster, names: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
    """The same for many groups; their requests, one for each group, are in flight together."""
    admin, left, found = cluster.admin, iter(names), {}
    while some := list(islice(left, IN_FLIGHT)):
        asked: dict[str, Any] = {}
        for name in some:
            asked |= admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name)], request_timeout=REQUEST_TIMEOUT_S
            )
        for name, described in results(asked).items():
            found[name] = {
                (at.topic, at.partition): at.offset for at in described.topic_partitions if not _is_mark(at)
            }
    return found


def _is_mark(position: TopicPartition) -> bool:
    """Whether this is the operator's mark about resets of the group: no consumer reads there."""
    where = position.topic, position.partition
    return where == MARK_PARTITION and metadata_of(position).startswith(MARK_PREFIX)


def commit_offsets(cluster: Cluster, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Set committed offsets of a group without members, all of them or none; Failed with the broker's reason."""
    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    with kafka_errors():
        asked = cluster.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name, wanted)], request_timeout=REQUEST_TIMEOUT_S
        )
    if why := outcomes(asked)[name]:
        raise Failed(f"the offsets of group {name} cannot be changed", why)
    for at in asked[name].result().topic_partitions:
        if at.error is not None:
            raise Failed(f"the offset of {at.topic}-{at.partition} cannot be changed", at.error.str())


def delete_groups(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Delete groups and their committed offsets; returns the refusal by name, "" for those deleted."""
    with kafka_errors():
        asked = cluster.admin.delete_consumer_groups(list(names), request_timeout=REQUEST_TIMEOUT_S)
    return outcomes(asked)


def group_states(cluster: Cluster, names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """State and number of members by group; the state is Dead for an unknown group."""
    with kafka_errors():
        asked = cluster.admin.describe_consumer_groups(list(names), request_timeout=REQUEST_TIMEOUT_S)
    return {name: (_camel(group.state.name), len(group.members)) for name, group in results(asked).items()}


def group_states_of_any_kind(cluster: Cluster, names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Like `group_states`, but includes groups whose members do not consume, such as those of mirrors."""
    found = {}
    with kafka_errors():
        asked = cluster.admin.describe_consumer_groups(list(names), request_timeout=REQUEST_TIMEOUT_S)
        for name, answer in asked.items():
            try:
                group = answer.result()
                found[name] = _camel(group.state.name), len(group.members)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._INVALID_ARG:
                    raise
                listed = cluster.admin.list_groups(name, timeout=REQUEST_TIMEOUT_S)
                found[name] = (str(listed[0].state), len(listed[0].members)) if listed else ("Dead", 0)
    return found


def unknown_group(name: str) -> UnknownGroup:
    return UnknownGroup(f'there is no group "{name}"', "millstream group list shows the groups")


def _camel(state: str) -> str:
    """PREPARING_REBALANCING -> PreparingRebalance, as Kafka's tools and our resources write it."""
    return "".join(word.capitalize() for word in state.split("_")).replace("Rebalancing", "Rebalance")
