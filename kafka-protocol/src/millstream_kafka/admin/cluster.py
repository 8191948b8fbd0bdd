"""Administration of brokers, topics and configurations.

What an API refuses for one topic or partition is a `Refusal` in the result. Raises BrokerError if a broker does not
answer, and ApiError if a whole request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from ..client.cluster import ClusterClient
from ..protocol import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    incremental_alter_configs,
    list_partition_reassignments,
)
from ..protocol.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ..protocol.api import Api, Req, Res
from ..protocol.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ..protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ..protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ..protocol.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from ..protocol.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsTopic,
)
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ..protocol.list_partition_reassignments import ListPartitionReassignmentsRequest
from ..protocol.metadata import MetadataResponseTopic
from ..topic_partition import TopicPartition
from .records import (
    BROKERS_DEFAULT,
    BrokersState,
    ConfigChange,
    NewTopic,
    Reassignment,
    Refusal,
    ResourceType,
)

_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""
P = TypeVar("P", bound=TopicPartition)
V = TypeVar("V")


def by_topic(items: Mapping[P, V]) -> dict[str, dict[int, V]]:
    """Values by topic and partition number."""
    found: dict[str, dict[int, V]] = {}
    for (topic, partition), value in items.items():
        found.setdefault(topic, {})[partition] = value
    return found


class ClusterAdmin:
    """``timeout`` (s) is that of each request."""

    def __init__(self, cluster: ClusterClient, timeout: float = 30.0) -> None:
        self.cluster = cluster
        self.timeout = timeout

    @property
    def _timeout_ms(self) -> int:
        return int(self.timeout * 1000)

    # --- brokers ---

    async def cluster_id(self) -> str:
        return (await self.cluster.metadata([])).cluster_id or ""

    async def brokers(self) -> BrokersState:
        found = await self.cluster.metadata([])
        return BrokersState({broker.node_id: broker.rack for broker in found.brokers}, found.controller_id)

    async def log_dirs(
        self, broker: int, topics: Mapping[str, Collection[int]] | None = None
    ) -> list[DescribeLogDirsTopic]:
        """The logs in all log directories of a broker, those of these partitions or all (KIP-113)."""
        wanted = None
        if topics is not None:
            wanted = [DescribableLogDirTopic(name, sorted(partitions)) for name, partitions in topics.items()]
        response = await self.cluster.call_node(
            broker, describe_log_dirs.API, DescribeLogDirsRequest(wanted), timeout=self.timeout
        )
        _check(response.error_code)
        return [topic for log_dir in response.results for topic in log_dir.topics]

    # --- configurations ---

    async def configs(
        self,
        resource: ResourceType,
        names: Iterable[str],
        keys: Collection[str] | None = None,
        *,
        broker: int | None = None,
    ) -> dict[str, list[DescribeConfigsResourceResult]]:
        """The entries with these keys, or all, by resource; none for a resource that is refused.

        ``broker``: the one to ask; any one by default.
        """
        asked = None if keys is None else sorted(keys)
        request = DescribeConfigsRequest([DescribeConfigsResource(resource, name, asked) for name in names])
        if broker is None:
            response = await self.cluster.call_any(describe_configs.API, request, timeout=self.timeout)
        else:
            response = await self.cluster.call_node(
                broker, describe_configs.API, request, timeout=self.timeout
            )
        return {result.resource_name: list(result.configs) for result in response.results}

    async def alter_configs(
        self, resource: ResourceType, changes: Mapping[str, ConfigChange]
    ) -> dict[str, Refusal | None]:
        """Change configurations incrementally: other keys keep their values."""
        resources = [
            AlterConfigsResource(
                resource,
                name,
                [
                    *(AlterableConfig(key, _SET, value) for key, value in change.set.items()),
                    *(AlterableConfig(key, _DELETE, None) for key in change.reset),
                ],
            )
            for name, change in changes.items()
        ]
        response = await self.cluster.call_any(
            incremental_alter_configs.API, IncrementalAlterConfigsRequest(resources), timeout=self.timeout
        )
        return {
            result.resource_name: Refusal.of(result.error_code, result.error_message)
            for result in response.responses
        }

    # --- topics ---

    async def topics(self, names: Collection[str] | None) -> list[MetadataResponseTopic]:
        """The existing ones of these topics, or all topics."""
        if names is not None and not names:
            return []
        response = await self.cluster.metadata(names)
        return [topic for topic in response.topics if not topic.error_code]

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, Refusal | None]:
        wanted = [
            CreatableTopic(
                topic.name,
                BROKERS_DEFAULT if topic.partitions is None else topic.partitions,
                BROKERS_DEFAULT if topic.replication_factor is None else topic.replication_factor,
                [],
                [CreatableTopicConfig(key, value) for key, value in topic.config.items()],
            )
            for topic in topics
        ]
        response = await self._call_controller(
            create_topics.API, CreateTopicsRequest(wanted, self._timeout_ms), lambda found: found.topics
        )
        return {topic.name: Refusal.of(topic.error_code, topic.error_message) for topic in response.topics}

    async def create_partitions(self, totals: Mapping[str, int]) -> dict[str, Refusal | None]:
        """Add partitions until each topic has this many."""
        wanted = [CreatePartitionsTopic(name, count, None) for name, count in totals.items()]
        response = await self._call_controller(
            create_partitions.API,
            CreatePartitionsRequest(wanted, self._timeout_ms),
            lambda found: found.results,
        )
        return {topic.name: Refusal.of(topic.error_code, topic.error_message) for topic in response.results}

    async def delete_topics(
        self, names: Collection[str], ids: Mapping[str, UUID] = MappingProxyType({})
    ) -> dict[str, Refusal | None]:
        """``ids``: of topics that are deleted only if they still have this id (UNKNOWN_TOPIC_ID otherwise).

        Brokers before Kafka 2.8 know no ids, and go by the names.
        """
        states = [
            DeleteTopicState(None, ids[name]) if name in ids else DeleteTopicState(name) for name in names
        ]
        request = DeleteTopicsRequest(states, list(names), self._timeout_ms)
        response = await self._call_controller(delete_topics.API, request, lambda found: found.responses)
        of_ids = {topic_id: name for name, topic_id in ids.items()}
        return {
            name: Refusal.of(topic.error_code, topic.error_message)
            for topic in response.responses
            if (name := of_ids.get(topic.topic_id, topic.name)) is not None
        }

    # --- reassignments ---

    async def reassign(self, moves: Mapping[P, Sequence[int]]) -> dict[TopicPartition, Refusal]:
        """Begin to move replicas (KIP-455); returns what was refused."""
        topics = [
            ReassignableTopic(
                name, [ReassignablePartition(index, list(replicas)) for index, replicas in partitions.items()]
            )
            for name, partitions in by_topic(moves).items()
        ]
        response = await self._call_controller(
            alter_partition_reassignments.API,
            AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics),
            lambda found: [found],
        )
        whole = Refusal.of(response.error_code, response.error_message)
        if whole is not None:
            return dict.fromkeys(moves, whole)
        return {
            (topic.name, partition.partition_index): refusal
            for topic in response.responses
            for partition in topic.partitions
            if (refusal := Refusal.of(partition.error_code, partition.error_message)) is not None
        }

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The partitions whose replicas are being reassigned."""
        response = await self._call_controller(
            list_partition_reassignments.API,
            ListPartitionReassignmentsRequest(self._timeout_ms, None),
            lambda found: [found],
        )
        _check(response.error_code, response.error_message)
        return {
            (topic.name, partition.partition_index): Reassignment(
                tuple(partition.adding_replicas), tuple(partition.removing_replicas)
            )
            for topic in response.topics
            for partition in topic.partitions
        }

    async def _call_controller(
        self, api: Api[Req, Res], request: Req, results: Callable[[Res], Iterable[Any]]
    ) -> Res:
        """Raises ApiError if the broker is no longer the controller: nothing was changed."""
        response = await self.cluster.call_controller(api, request, timeout=self.timeout)
        if any(result.error_code == ErrorCode.NOT_CONTROLLER for result in results(response)):
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return response


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise ApiError(ErrorCode.of(code), message)
