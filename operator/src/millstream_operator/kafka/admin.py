"""The operator's view of a cluster's brokers: kafka-python's admin client with plain records in and out.

Calls block, with explicit timeouts, and are thread-safe; each cluster has one client, whose connections are reused. If
a whole call fails (no broker responds, the client gives up), it raises ``AdminError`` and drops the client, and the
next call reconnects. An error of one topic or group is returned as a ``Refusal``; the others succeed.
"""

from __future__ import annotations

import base64
import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    ConfigSourceType,
    ConfigType,
    KafkaAdminClient,
)
from kafka.errors import (
    UnknownBrokerIdError,
    for_code,
)
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..models.config_values import ConfigValue
from .connection import REQUEST_TIMEOUT_S, Fence, KafkaConnection, no_fence
from .offsets import by_leader, offsets_in, topics_in
from .records import (
    BROKERS_DEFAULT,
    MARK,
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
    stray_id,
)

READ_UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED.value
ELECTION_S, LOOK_S, AGAIN_S = 3.0, 1.0, 0.1
"""Time for which a request for offsets waits for leaders, if all must answer and if not, and between two attempts."""
_BROKER = ConfigResourceType.BROKER.value  # with an empty name: all brokers


class KafkaAdmin(KafkaConnection):
    """The brokers at one bootstrap address."""

    def cluster_id(self) -> str:
        """Kafka's id of the cluster."""
        return str(self.call(lambda client: client.describe_cluster())["cluster_id"])

    def brokers(self) -> BrokersState:
        answer = self.call(lambda client: client.describe_cluster())
        return BrokersState(
            {broker["broker_id"]: broker.get("rack") for broker in answer["brokers"]}, answer["controller_id"]
        )

    def replicas(
        self, topics: Collection[str] | None = None, *, min_isr: bool = False
    ) -> list[PartitionReplicas]:
        """The partitions of these topics, or of all; ``min_isr`` adds each topic's min.insync.replicas."""
        described = self.described(topics)
        minimums: dict[str, int] = {}
        if min_isr and described:
            resources = [
                ConfigResource(ConfigResourceType.TOPIC, name, ["min.insync.replicas"]) for name in described
            ]
            answer = self.call(lambda client: client.describe_configs(resources, config_filter="all"))
            found = answer.get("topic", {})
            for name in described:
                if (entry := found.get(name, {}).get("min.insync.replicas")) is None:
                    # just deleted, or not known yet to a broker that has just started
                    raise AdminError(
                        f"the brokers at {self.bootstrap} do not return the configuration of {name}"
                    )
                minimums[name] = int(entry["value"])
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
            broker: sum(len(topic.partitions) for topic in logs if stray_id(topic.name) is None)
            for broker, logs in self._logs(brokers).items()
        }

    def strays(self) -> list[StrayLog]:
        """The strays of all live brokers: a request for no topic returns them alone."""
        try:
            return [
                StrayLog(broker, uuid_text(topic_id), one.partition_size, one.partition_index)
                for broker, logs in self._logs(self.brokers().racks, topics=[]).items()
                for topic in logs
                if (topic_id := stray_id(topic.name)) is not None
                for one in topic.partitions
            ]
        except NotSupported:
            return []

    def _logs(self, brokers: Collection[int], topics: Sequence[Any] | None = None) -> dict[int, list[Any]]:
        """What is in the log directories of these brokers, by topic; ``topics``: None for everything.

        kafka-python's ``describe_log_dirs`` asks only for the topics of the metadata, of which strays are none.
        """
        request = DescribeLogDirsRequest(topics=topics)
        return self.call(
            lambda client: {
                broker: [
                    topic
                    for log_dir in client._manager.run(client._manager.send, request, broker).results
                    for topic in log_dir.topics
                ]
                for broker in brokers
            }
        )

    def reassign(self, moves: Mapping[tuple[str, int], Sequence[int]]) -> dict[tuple[str, int], Refusal]:
        """Begin to move replicas (KIP-455); returns what was refused. The brokers complete the moves: see
        ``reassigning``."""
        of_topics: dict[str, list[tuple[int, list[int]]]] = {}
        for (name, partition), replicas in moves.items():
            of_topics.setdefault(name, []).append((partition, list(replicas)))
        timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
        answer = self.send(
            AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=list(of_topics.items()))
        )
        if (refusal := _refusal(answer.error_code, answer.error_message)) is not None:
            return dict.fromkeys(moves, refusal)
        return {
            (topic.name, partition.partition_index): no
            for topic in answer.responses
            for partition in topic.partitions
            if (no := _refusal(partition.error_code, partition.error_message)) is not None
        }

    def reassigning(self) -> dict[tuple[str, int], Reassignment]:
        """The partitions whose replicas are being reassigned."""
        answer = self.call(lambda client: client.list_partition_reassignments())
        return {
            (partition.topic, partition.partition): Reassignment(
                tuple(state["adding_replicas"]), tuple(state["removing_replicas"])
            )
            for partition, state in answer.items()
        }

    def brokers_config(self) -> dict[str, str]:
        """The dynamic cluster-wide broker configuration."""
        answer = self.send(DescribeConfigsRequest(resources=[(_BROKER, "", None)], include_synonyms=False))
        return {
            entry.name: ConfigValue(entry.value or "", _type_name(entry.config_type))
            for result in answer.results
            for entry in result.configs
            if entry.config_source == ConfigSourceType.DYNAMIC_DEFAULT_BROKER_CONFIG
        }

    def change_brokers_config(self, change: ConfigChange) -> Refusal | None:
        """Set and reset keys of the dynamic cluster-wide broker configuration."""
        operations = [
            *((key, AlterConfigOp.SET.value, value) for key, value in change.set.items()),
            *((key, AlterConfigOp.DELETE.value, None) for key in change.reset),
        ]
        answer = self.send(
            IncrementalAlterConfigsRequest(resources=[(_BROKER, "", operations)], validate_only=False)
        )
        return next((_refusal(result.error_code, result.error_message) for result in answer.responses), None)

    def described(self, names: Collection[str] | None) -> dict[str, Any]:
        """The existing ones of these topics, or all topics, as in a Metadata response."""
        if names is not None and not names:
            return {}
        answer = self.call(lambda client: topics_in(client, names))
        return {topic.name: topic for topic in answer if topic.error_code == 0}

    def topic_names(self) -> list[str]:
        """The names of all topics."""
        return sorted(self.described(None))

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """The state of those topics that exist, in three requests for any number of topics."""
        described = self.described(names)
        if not described:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in described]
        # unmodified settings, too: whether the brokers know OWNER
        configs = self.call(lambda client: client.describe_configs(resources, config_filter="all")).get(
            "topic", {}
        )
        sizes = self._sizes(list(described))
        return {
            name: _topic_state(topic, configs.get(name, {}), sizes.get(name) if sizes is not None else None)
            for name, topic in described.items()
        }

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """Number of partitions of those topics that exist."""
        return {name: len(topic.partitions) for name, topic in self.described(topics).items()}

    def identities(self, topics: Collection[str]) -> dict[str, TopicIdentity]:
        """Id and number of partitions of those topics that exist."""
        none = uuid_text(None)
        return {
            name: TopicIdentity(
                None if (found := uuid_text(topic.topic_id)) == none else found,
                len(topic.partitions),
            )
            for name, topic in self.described(topics).items()
        }

    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        """Create topics. An existing topic is no refusal: the broker that did not list it did not know it yet."""
        wanted = {
            topic.name: {
                "num_partitions": _or_default(topic.partitions),
                "replication_factor": _or_default(topic.replication_factor),
                "configs": dict(topic.config),
            }
            for topic in topics
        }
        answer = self.call(lambda client: client.create_topics(wanted, raise_errors=False))
        refusals = {
            topic["name"]: _refusal(topic["error_code"], topic.get("error_message"))
            for topic in answer["topics"]
        }
        return {
            name: None if no is not None and no.error == "TOPIC_ALREADY_EXISTS" else no
            for name, no in refusals.items()
        }

    def add_partitions(self, totals: Mapping[str, int]) -> dict[str, Refusal | None]:
        answer = self.call(lambda client: client.create_partitions(dict(totals), raise_errors=False))
        return {result.name: _refusal(result.error_code, result.error_message) for result in answer.results}

    def change_configs(self, changes: Mapping[str, ConfigChange]) -> dict[str, Refusal | None]:
        """Change topic configurations incrementally: other keys keep their values."""
        resources = [
            ConfigResource(
                ConfigResourceType.TOPIC,
                name,
                {
                    **{key: ("SET", value) for key, value in change.set.items()},
                    **dict.fromkeys(change.reset, ("DELETE", None)),
                },
            )
            for name, change in changes.items()
        ]
        answer = self.call(
            lambda client: client.alter_configs(resources, raise_on_unknown=False, incremental=True)
        )
        return {name: _refusal_of_text(result) for name, result in answer.get("topic", {}).items()}

    def delete_topics(self, names: Collection[str]) -> dict[str, Refusal | None]:
        answer = self.call(lambda client: client.delete_topics(list(names), raise_errors=False))
        return {
            topic["name"]: _refusal(topic["error_code"], topic.get("error_message"))
            for topic in answer["topics"]
        }

    def groups(self, group_ids: Collection[str]) -> dict[str, GroupState]:
        """The state of each group; a group that does not exist is Dead."""
        answer = self.call(lambda client: client.describe_groups(list(group_ids)))
        return {name: _group_state(group) for name, group in answer.items()}

    def committed(self, group_ids: Collection[str]) -> dict[str, dict[Partition, int]]:
        """All committed offsets of groups, without marks."""
        answer = self.call(lambda client: client.list_group_offsets(list(group_ids)))
        return {
            group: {
                Partition(*partition): entry.offset
                for partition, entry in offsets.items()
                if entry.offset >= 0 and not _is_mark(entry)
            }
            for group, offsets in answer.items()
        }

    def offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
        """For each partition the offset of the first record at or after a time in milliseconds, or of ``EARLIEST`` or
        ``LATEST``; -1 if there is no such record. Every partition must exist and have a leader."""
        found = self.led_offsets(wanted, ELECTION_S)
        if without := wanted.keys() - found.keys():
            raise AdminError(no_leader(without))
        return found

    def led_offsets(self, wanted: Mapping[Partition, int], wait_s: float = LOOK_S) -> dict[Partition, int]:
        """The same, without those partitions that no leader answers for within about ``wait_s``."""
        if not wanted:
            return {}

        def ask(client: KafkaAdminClient) -> dict[Partition, int]:
            found: dict[Partition, int] = {}
            deadline = time.monotonic() + wait_s
            while left := {partition: when for partition, when in wanted.items() if partition not in found}:
                for leader, specs in by_leader(client, left).items():
                    request = client._list_partition_offsets_request(specs, READ_UNCOMMITTED)
                    with contextlib.suppress(UnknownBrokerIdError):
                        found |= offsets_in(client._manager.run(client._manager.send, request, leader))
                if len(found) < len(wanted):
                    if time.monotonic() > deadline:
                        break
                    time.sleep(AGAIN_S)
            return found

        return self.call(ask)

    def marks(self, group_ids: Collection[str]) -> dict[str, Mark]:
        """The marks of those groups that have one."""
        place = TopicPartition(*MARK_PARTITION)
        answer = self.call(lambda client: client.list_group_offsets({one: [place] for one in group_ids}))
        found = {group: offsets[place] for group, offsets in answer.items() if place in offsets}
        return {group: Mark(one.metadata, one.offset) for group, one in found.items() if _is_mark(one)}

    def commit(
        self, group_id: str, offsets: Mapping[Partition, int], mark: Mark | None = None
    ) -> Refusal | None:
        """Commit offsets for a group without members. The brokers store up to 100 positions, the mark included, in one
        step: all of them or none."""
        entries = {
            TopicPartition(*partition): OffsetAndMetadata(at, "", None) for partition, at in offsets.items()
        }
        if mark is not None:
            entries[TopicPartition(*MARK_PARTITION)] = OffsetAndMetadata(mark.step, mark.name, None)
        answer = self.call(lambda client: client.alter_group_offsets(group_id, entries))
        failed = sorted({_name(error) for error in answer.values() if getattr(error, "errno", 0)})
        return Refusal(failed[0], f"the broker refused to commit: {', '.join(failed)}") if failed else None

    def delete_offsets(self, group_id: str, partitions: Iterable[Partition]) -> Refusal | None:
        """Delete a group's offsets in partitions that no member is subscribed to (KIP-496)."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        answer = self.call(lambda client: client.delete_group_offsets(group_id, wanted))
        failed = sorted({_name(error) for error in answer.values() if getattr(error, "errno", 0)})
        return Refusal(failed[0], f"the broker refused to delete: {', '.join(failed)}") if failed else None

    def delete_groups(self, group_ids: Collection[str]) -> dict[str, Refusal | None]:
        answer = self.call(lambda client: client.delete_groups(list(group_ids)))
        return {
            group: None if result == "OK" else Refusal(result, result) for group, result in answer.items()
        }

    def _sizes(self, names: list[str]) -> dict[str, int] | None:
        """Bytes by topic over all brokers, or None if the brokers do not support the request."""
        try:
            answer = self.call(lambda client: client.describe_log_dirs(names))
        except NotSupported:
            return None
        sizes = dict.fromkeys(names, 0)
        for broker in answer:
            for log_dir in broker["log_dirs"]:
                for topic in log_dir["topics"]:
                    sizes[topic["name"]] += sum(
                        partition["partition_size"] for partition in topic["partitions"]
                    )
        return sizes


class AdminPool:
    """One KafkaAdmin for each address. ``fence``: see connection.py."""

    def __init__(self, fence: Fence = no_fence) -> None:
        self.fence = fence
        self._lock = threading.Lock()
        self._admins: dict[str, KafkaAdmin] = {}

    def at(self, bootstrap: str) -> KafkaAdmin:
        with self._lock:
            return self._admins.setdefault(bootstrap, KafkaAdmin(bootstrap, fence=lambda: self.fence()))

    def retry(self, bootstrap: str) -> None:
        """Let the next call to a cluster connect again, of which a broker has just become ready."""
        with self._lock:
            admin = self._admins.get(bootstrap)
        if admin is not None:
            admin.retry()

    def forget(self, bootstrap: str) -> None:
        """Drop the client of a deleted cluster."""
        with self._lock:
            admin = self._admins.pop(bootstrap, None)
        if admin is not None:
            admin.close()

    def close(self) -> None:
        with self._lock:
            admins, self._admins = self._admins, {}
        for admin in admins.values():
            admin.close()


class OwnAdmins:
    """A pool for each user, who closes it without closing another's connections. ``fence``: see connection.py."""

    def __init__(self, new: Callable[[Fence], AdminPool] = AdminPool) -> None:
        self.fence: Fence = no_fence
        self._new = new
        self._lock = threading.Lock()
        self._pools: dict[Hashable, AdminPool] = {}

    def of(self, user: Hashable) -> AdminPool:
        with self._lock:
            if user not in self._pools:
                self._pools[user] = self._new(lambda: self.fence())
            return self._pools[user]

    def forget(self, user: Hashable) -> None:
        """Close this user's connections."""
        with self._lock:
            pool = self._pools.pop(user, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        for user in list(self._pools):
            self.forget(user)


def _is_mark(entry: OffsetAndMetadata) -> bool:
    return entry.offset >= 0 and (entry.metadata or "").startswith(MARK)


def _type_name(number: int | None) -> str:
    """Kafka's name of a configuration key's type; empty if brokers do not return it."""
    return str(ConfigType(number).name) if number in iter(ConfigType) else ""


def _or_default(count: int | None) -> int:
    return BROKERS_DEFAULT if count is None else count


def _topic_state(topic: Any, configs: Mapping[str, Any], size: int | None) -> TopicState:
    partitions = topic.partitions
    return TopicState(
        topic_id=uuid_text(topic.topic_id),
        partitions=len(partitions),
        replication_factor=max((len(p.replica_nodes) for p in partitions), default=0),
        under_replicated=sum(len(p.isr_nodes) < len(p.replica_nodes) for p in partitions),
        config={
            key: ConfigValue(entry["value"] or "", str(entry.get("config_type") or ""))
            for key, entry in configs.items()
            if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"
        },
        size_bytes=size,
        even=len({len(p.replica_nodes) for p in partitions}) < 2,
        owner=(configs[OWNER]["value"] or "") if OWNER in configs else None,
    )


def _group_state(group: Mapping[str, Any]) -> GroupState:
    members = []
    for member in group["members"]:
        assignment = member.get("member_assignment")
        topics = assignment.get("assigned_partitions", ()) if isinstance(assignment, Mapping) else ()
        partitions = tuple(
            Partition(entry["topic"], index) for entry in topics for index in sorted(entry["partitions"])
        )
        host = str(member["client_host"]).removeprefix("/")
        members.append(GroupMember(member["client_id"], host, partitions))
    members.sort(key=lambda m: (m.client_id, m.host, m.partitions))
    return GroupState(group["group_state"] or "Dead", tuple(members))


def uuid_text(value: object) -> str:
    """A uuid as Kafka writes it: URL-safe base64 without padding."""
    raw = uuid.UUID(str(value)).bytes if value else bytes(16)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _refusal(code: int, message: str | None) -> Refusal | None:
    if code == 0:
        return None
    return Refusal(_name(for_code(code)), message or str(getattr(for_code(code), "description", "")))


def _refusal_of_text(result: str) -> Refusal | None:
    """Parse kafka-python's result of altering a config: "OK" or "[Error 40] InvalidConfigurationError: words"."""
    found = re.match(r"\[Error (\d+)\] (?:\w+Error: )?(.*)", result, re.DOTALL)
    if found is None:
        return None if result == "OK" else Refusal("UNKNOWN_SERVER_ERROR", result)
    return _refusal(int(found[1]), found[2])


def _name(error: Any) -> str:
    """Kafka's name of an error class, as INVALID_CONFIG."""
    return str(getattr(error, "message", None) or error.__name__)
