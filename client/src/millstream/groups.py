"""Consumer groups: which there are, who is in them, and how far behind they are."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions

from millstream.connection import REQUEST_TIMEOUT_S, Cluster, kafka_errors, results
from millstream.errors import UnknownGroup
from millstream.topics import watermarks

DEAD = "DEAD"


@dataclass(frozen=True, slots=True)
class Group:
    """A group at a glance; ``state`` as Kafka has it: Stable, Empty, PreparingRebalance, …"""

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
    """How far the group is in one partition. Without a committed offset that is -1, and all of it is lag."""

    topic: str
    partition: int
    committed: int
    latest: int
    lag: int
    client_id: str
    """Of the member that consumes it; "" when none does."""


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
        (Group(one.group_id, _camel(one.state.name)) for one in listed.valid), key=lambda group: group.group
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
    asked = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(name)], request_timeout=REQUEST_TIMEOUT_S
    )
    committed = {(at.topic, at.partition): at.offset for at in results(asked)[name].topic_partitions}
    if described.state.name == DEAD and not committed:
        raise UnknownGroup(f'there is no group "{name}"', "millstream group list shows those there are")
    consumers = {partition: member.client_id for member in members for partition in member.partitions}
    owned = {(topic, int(number)) for topic, _, number in (name.rpartition("-") for name in consumers)}
    progress = _progress(cluster, {**dict.fromkeys(owned, -1), **committed}, consumers)
    lag = sum(one.lag for one in progress)
    state, coordinator = _camel(described.state.name), described.coordinator
    return GroupDetails(name, state, coordinator.id if coordinator else -1, lag, members, progress)


def _progress(
    cluster: Cluster, committed: dict[tuple[str, int], int], consumers: dict[str, str]
) -> tuple[Progress, ...]:
    there = cluster.metadata().topics
    # Offsets outlive their topic.
    wanted = sorted(key for key in committed if key[0] in there and key[1] in there[key[0]].partitions)
    ends = watermarks(cluster, wanted)
    found = []
    for topic, partition in wanted:
        earliest, latest = ends[topic, partition]
        offset = max(committed[topic, partition], -1)
        lag = max(latest - max(offset, earliest), 0)
        client = consumers.get(f"{topic}-{partition}", "")
        found.append(Progress(topic, partition, offset, latest, lag, client))
    return tuple(found)


def _camel(state: str) -> str:
    """PREPARING_REBALANCING -> PreparingRebalance, as Kafka's tools and our resources write it."""
    return "".join(word.capitalize() for word in state.split("_")).replace("Rebalancing", "Rebalance")
