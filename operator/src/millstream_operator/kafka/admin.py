"""The operator's requests to a cluster's brokers, with plain records in and out.

Calls block, with explicit timeouts, and are thread-safe; each cluster has one client, whose connections are reused. If
a whole call fails (no broker responds, the client gives up), it raises ``AdminError`` and drops the client, and the
next call reconnects. An error of one topic or group is returned as a ``Refusal``; the others succeed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

from millstream_kafka import group_mark
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import ConfigSource, ConfigType, OffsetAndMetadata, ResourceType
from millstream_kafka.kafka_uuid import uuid_from, uuid_text
from millstream_kafka.protocol.describe_configs import DescribeConfigsResourceResult
from millstream_kafka.protocol.describe_log_dirs import DescribeLogDirsTopic
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.metadata import MetadataResponseTopic
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition

from ..models.config_values import ConfigValue
from .access import AccessRequests
from .records import (
    MARK_PARTITION,
    OWNER,
    AdminError,
    BrokersState,
    ConfigChange,
    GroupMember,
    GroupState,
    Mark,
    NewTopic,
    NotSupported,
    Partition,
    PartitionReplicas,
    Reassignment,
    Refusal,
    StrayLog,
    TopicIdentity,
    TopicState,
    no_leader,
    stray_topic,
)

ELECTION_S, LOOK_S, AGAIN_S = 3.0, 1.0, 0.1
"""Time for which a request for offsets waits for leaders, if all must answer and if not, and between two attempts."""
ALL_BROKERS = ""
"""The name of the resource that all brokers are, among configurations."""
Entries = Iterable[DescribeConfigsResourceResult]


class KafkaAdmin(AccessRequests):
    """The brokers at one bootstrap address."""

    def cluster_id(self) -> str:
        """Kafka's id of the cluster."""
        return self.call(lambda client: client.cluster_id())

    def brokers(self) -> BrokersState:
        return self.call(lambda client: client.brokers())

    def replicas(
        self, topics: Collection[str] | None = None, *, min_isr: bool = False
    ) -> list[PartitionReplicas]:
        """The partitions of these topics, or of all; ``min_isr`` adds each topic's min.insync.replicas."""
        described = self.described(topics)
        minimums: dict[str, int] = {}
        if min_isr and described:
            found = self.call(
                lambda client: client.configs(ResourceType.TOPIC, described, ["min.insync.replicas"])
            )
            for name in described:
                values = [entry.value for entry in found.get(name, ())]
                if not values or values[0] is None:
                    # just deleted, or not known yet to a broker that has just started
                    raise AdminError(
                        f"the brokers at {self.bootstrap} do not return the configuration of {name}"
                    )
                minimums[name] = int(values[0])
        return [
            PartitionReplicas(
                name,
                partition.partition_index,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                minimums.get(name, 1),
            )
            for name, topic in described.items()
            for partition in topic.partitions
        ]

    def held(self, brokers: Collection[int]) -> dict[int, int]:
        """The number of replicas on each of these brokers, as the broker itself reports it (KIP-113); no strays."""
        return {
            broker: sum(len(topic.partitions) for topic in logs if stray_topic(topic.name) is None)
            for broker, logs in self._logs(brokers).items()
        }

    def strays(self) -> list[StrayLog]:
        """The strays of all live brokers: a request for no topic returns them alone."""
        try:
            return [
                StrayLog(
                    broker,
                    uuid_text(uuid.UUID(of.topic_id)),
                    partition.partition_size,
                    partition.partition_index,
                    of.name,
                )
                for broker, logs in self._logs(self.brokers().racks, topics={}).items()
                for topic in logs
                if (of := stray_topic(topic.name)) is not None
                for partition in topic.partitions
            ]
        except NotSupported:
            return []

    def _logs(
        self, brokers: Collection[int], topics: Mapping[str, Collection[int]] | None = None
    ) -> dict[int, list[DescribeLogDirsTopic]]:
        """The logs of these partitions, or all, by broker."""

        async def read(client: AdminClient) -> dict[int, list[DescribeLogDirsTopic]]:
            return {broker: await client.log_dirs(broker, topics) for broker in brokers}

        return self.call(read)

    def reassign(self, moves: Mapping[tuple[str, int], Sequence[int]]) -> dict[tuple[str, int], Refusal]:
        """Begin to move replicas (KIP-455); returns what was refused. The brokers complete the moves: see
        ``reassigning``."""
        return self.call(lambda client: client.reassign(moves))

    def reassigning(self) -> dict[tuple[str, int], Reassignment]:
        """The partitions whose replicas are being reassigned."""
        return self.call(lambda client: client.reassignments())

    def brokers_config(self) -> dict[str, str]:
        """The dynamic cluster-wide broker configuration."""
        found = self.call(lambda client: client.configs(ResourceType.BROKER, [ALL_BROKERS]))
        return _values(found.get(ALL_BROKERS, ()), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)

    def change_brokers_config(self, change: ConfigChange) -> Refusal | None:
        """Set and reset keys of the dynamic cluster-wide broker configuration."""
        changes = {ALL_BROKERS: change}
        return self.call(lambda client: client.alter_configs(ResourceType.BROKER, changes)).get(ALL_BROKERS)

    def described(self, names: Collection[str] | None) -> dict[str, MetadataResponseTopic]:
        """The existing ones of these topics, or all topics, as in a Metadata response."""
        if names is not None and not names:
            return {}
        found = self.call(lambda client: client.topics(names))
        return {topic.name: topic for topic in found if topic.name is not None}

    def topic_names(self) -> list[str]:
        """The names of all topics."""
        return sorted(self.described(None))

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """The state of those topics that exist, in a few requests for any number of topics."""
        described = self.described(names)
        if not described:
            return {}
        # unmodified settings, too: whether the brokers know OWNER
        configs = self.call(lambda client: client.configs(ResourceType.TOPIC, described))
        sizes = self._sizes(described)
        return {
            name: _topic_state(topic, configs.get(name, ()), sizes.get(name) if sizes is not None else None)
            for name, topic in described.items()
        }

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """Number of partitions of those topics that exist."""
        return {name: len(topic.partitions) for name, topic in self.described(topics).items()}

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity]:
        """Id and number of partitions of those topics that exist."""
        return {
            name: TopicIdentity(
                None if topic.topic_id == ZERO_UUID else uuid_text(topic.topic_id), len(topic.partitions)
            )
            for name, topic in self.described(topics).items()
        }

    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        """Create topics. An existing topic is no refusal: the broker that did not list it did not know it yet."""
        wanted = list(topics)
        found = self.call(lambda client: client.create_topics(wanted))
        exists = ErrorCode.TOPIC_ALREADY_EXISTS.name
        return {name: None if no is not None and no.error == exists else no for name, no in found.items()}

    def add_partitions(self, totals: Mapping[str, int]) -> dict[str, Refusal | None]:
        return self.call(lambda client: client.create_partitions(totals))

    def change_configs(self, changes: Mapping[str, ConfigChange]) -> dict[str, Refusal | None]:
        """Change topic configurations incrementally: other keys keep their values."""
        return self.call(lambda client: client.alter_configs(ResourceType.TOPIC, changes))

    def delete_topics(self, topics: Mapping[str, str | None]) -> dict[str, Refusal | None]:
        """Delete topics by name; one with an id only if it still has this id (UNKNOWN_TOPIC_ID otherwise)."""
        ids = {name: of for name, topic_id in topics.items() if (of := _known_id(topic_id)) is not None}
        return self.call(lambda client: client.delete_topics(list(topics), ids))

    def groups(self, group_ids: Collection[str]) -> dict[str, GroupState]:
        """The state of each group; a group that does not exist is Dead."""
        found = self.call(lambda client: client.groups(group_ids))
        return {
            name: GroupState(
                group.state,
                tuple(
                    sorted(
                        (
                            GroupMember(member.client_id, member.host, _partitions(member.partitions))
                            for member in group.members
                        ),
                        key=lambda member: (member.client_id, member.host, member.partitions),
                    )
                ),
            )
            for name, group in found.items()
        }

    def committed(self, group_ids: Collection[str]) -> dict[str, dict[Partition, int]]:
        """All committed offsets of groups, without marks."""
        found = self.committed_entries(group_ids)
        return {
            group: {
                partition: entry.offset
                for partition, entry in offsets.items()
                if not _is_mark(partition, entry)
            }
            for group, offsets in found.items()
        }

    def committed_entries(self, group_ids: Collection[str]) -> dict[str, dict[Partition, OffsetAndMetadata]]:
        """All committed offsets of groups, with metadata, marks included."""
        found = self.call(lambda client: client.committed(dict.fromkeys(group_ids)))
        return {
            group: {Partition(*partition): entry for partition, entry in offsets.items()}
            for group, offsets in found.items()
        }

    def offsets(
        self, wanted: Mapping[Partition, int], *, read_committed: bool = False
    ) -> dict[Partition, int]:
        """For each partition the offset of the first record at or after a time in milliseconds, or of ``EARLIEST`` or
        ``LATEST``; -1 if there is no such record. Every partition must exist and have a leader.

        ``read_committed``: logs end where the first open transaction begins."""
        found = self.led_offsets(wanted, ELECTION_S, read_committed=read_committed)
        if without := wanted.keys() - found.keys():
            raise AdminError(no_leader(without))
        return found

    def led_offsets(
        self, wanted: Mapping[Partition, int], wait_s: float = LOOK_S, *, read_committed: bool = False
    ) -> dict[Partition, int]:
        """The same, without those partitions that no leader answers for within about ``wait_s``."""
        if not wanted:
            return {}

        async def read(client: AdminClient) -> dict[Partition, int]:
            found: dict[Partition, int] = {}
            deadline = time.monotonic() + wait_s
            while left := {partition: when for partition, when in wanted.items() if partition not in found}:
                answered = await client.offsets(left, read_committed=read_committed)
                found |= {Partition(*partition): offset for partition, offset in answered.items()}
                if len(found) < len(wanted):
                    if time.monotonic() > deadline:
                        break
                    await asyncio.sleep(AGAIN_S)
            return found

        return self.call(read)

    def marks(self, group_ids: Collection[str]) -> dict[str, Mark]:
        """The marks of those groups that have one."""
        wanted = {group_id: [MARK_PARTITION] for group_id in group_ids}
        found = self.call(lambda client: client.committed(wanted))
        return {
            group: Mark(entry.metadata, entry.offset)
            for group, offsets in found.items()
            if (entry := offsets.get(MARK_PARTITION)) is not None and _is_mark(MARK_PARTITION, entry)
        }

    def commit(
        self, group_id: str, offsets: Mapping[Partition, int], mark: Mark | None = None
    ) -> Refusal | None:
        """Commit offsets for a group without members. The brokers store up to 100 positions, the mark included, in one
        step: all of them or none."""
        entries = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        if mark is not None:
            entries[MARK_PARTITION] = OffsetAndMetadata(mark.step, mark.name)
        return _refused("commit", self.call(lambda client: client.commit(group_id, entries)))

    def delete_offsets(self, group_id: str, partitions: Iterable[Partition]) -> Refusal | None:
        """Delete a group's offsets in partitions that no member is subscribed to (KIP-496)."""
        wanted = list(partitions)
        return _refused("delete", self.call(lambda client: client.delete_offsets(group_id, wanted)))

    def delete_groups(self, group_ids: Collection[str]) -> dict[str, Refusal | None]:
        return self.call(lambda client: client.delete_groups(group_ids))

    def _sizes(self, topics: Mapping[str, MetadataResponseTopic]) -> dict[str, int] | None:
        """Bytes by topic over all brokers, or None if the brokers do not support the request."""
        partitions = {
            name: [partition.partition_index for partition in topic.partitions]
            for name, topic in topics.items()
        }
        try:
            logs = self._logs(self.brokers().racks, partitions)
        except NotSupported:
            return None
        sizes = dict.fromkeys(topics, 0)
        for topic in (topic for logs_of_broker in logs.values() for topic in logs_of_broker):
            if topic.name in sizes:  # strays are in every answer
                sizes[topic.name] += sum(partition.partition_size for partition in topic.partitions)
        return sizes


def _partitions(partitions: Iterable[TopicPartition]) -> tuple[Partition, ...]:
    return tuple(Partition(*partition) for partition in partitions)


def _is_mark(partition: Partition, entry: OffsetAndMetadata) -> bool:
    return group_mark.is_mark(partition, entry.metadata)


def _values(entries: Entries, source: ConfigSource) -> dict[str, str]:
    """The values from this source, with the types of their keys."""
    return {
        entry.name: ConfigValue(entry.value or "", ConfigType.name_of(entry.config_type))
        for entry in entries
        if entry.config_source == source
    }


def _topic_state(topic: MetadataResponseTopic, entries: Entries, size: int | None) -> TopicState:
    partitions = topic.partitions
    owners = [entry.value or "" for entry in entries if entry.name == OWNER]
    return TopicState(
        topic_id=uuid_text(topic.topic_id),
        partitions=len(partitions),
        replication_factor=max((len(p.replica_nodes) for p in partitions), default=0),
        under_replicated=sum(len(p.isr_nodes) < len(p.replica_nodes) for p in partitions),
        config=_values(entries, ConfigSource.DYNAMIC_TOPIC_CONFIG),
        size_bytes=size,
        even=len({len(p.replica_nodes) for p in partitions}) < 2,
        owner=owners[0] if owners else None,
    )


def _refused(what: str, errors: Mapping[TopicPartition, ErrorCode]) -> Refusal | None:
    names = sorted({error.name for error in errors.values()})
    return Refusal(names[0], f"the broker refused to {what}: {', '.join(names)}") if names else None


def _known_id(text: str | None) -> uuid.UUID | None:
    """A topic id of a status; None for none, also of brokers without topic ids, and for text that is none."""
    try:
        found = uuid_from(text or "")
    except (TypeError, ValueError):
        return None
    return None if found == ZERO_UUID else found
