"""Administration of consumer groups and of their committed offsets.

One request for all groups of a coordinator, if it can answer several (KIP-699, KIP-709). What a coordinator refuses
for one partition or group is in the result. Raises BrokerError if a broker does not answer, and ApiError if a
coordinator cannot answer for a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..client.cluster import ClusterClient
from ..protocol import delete_groups, describe_groups, offset_commit, offset_delete, offset_fetch
from ..protocol.delete_groups import DeleteGroupsRequest
from ..protocol.describe_groups import DescribedGroup, DescribeGroupsRequest
from ..protocol.errors import COORDINATOR_ERRORS, ApiError, ErrorCode
from ..protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ..protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ..protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ..topic_partition import TopicPartition
from .cluster import P, by_topic
from .consumer_protocol import assigned_partitions
from .records import ConsumerGroupDescription, MemberDescription, OffsetAndMetadata, Refusal

MANY_GROUPS_SINCE = 8
"""The first version of OffsetFetch for several groups."""
Asked = Mapping[str, Collection[TopicPartition] | None]
"""Partitions of groups; None: all."""


class GroupAdmin:
    """``timeout`` (s) is that of each request."""

    def __init__(self, cluster: ClusterClient, timeout: float = 30.0) -> None:
        self.cluster = cluster
        self.timeout = timeout

    async def groups(self, ids: Collection[str]) -> dict[str, ConsumerGroupDescription]:
        """A group that does not exist is Dead."""
        found: dict[str, ConsumerGroupDescription] = {}
        for node, group_ids in (await self._by_coordinator(ids)).items():
            response = await self.cluster.call_node(
                node, describe_groups.API, DescribeGroupsRequest(group_ids), timeout=self.timeout
            )
            for group in response.groups:
                if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                    self._check(group.error_code, group.group_id)
                found[group.group_id] = _description(group)
        return found

    async def committed(self, groups: Asked) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of these partitions of groups; partitions without one are left out."""
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for node, group_ids in (await self._by_coordinator(groups)).items():
            connection = await self.cluster.connection(node)
            if connection.version(offset_fetch.BY_NAME) >= MANY_GROUPS_SINCE:
                requests = [group_ids]
            else:
                requests = [[group_id] for group_id in group_ids]
            for request in requests:
                found |= await self._committed(node, {group_id: groups[group_id] for group_id in request})
        return found

    async def _committed(
        self, node: int, groups: Asked
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        first = next(iter(groups))
        request = OffsetFetchRequest(
            group_id=first,
            topics=_offset_topics(OffsetFetchRequestTopic, groups[first]),
            groups=[
                OffsetFetchRequestGroup(group_id, topics=_offset_topics(OffsetFetchRequestTopics, partitions))
                for group_id, partitions in groups.items()
            ],
        )
        response = await self.cluster.call_node(node, offset_fetch.BY_NAME, request, timeout=self.timeout)
        answers: dict[str, Any] = {group.group_id: group for group in response.groups} or {first: response}
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for group_id, answer in answers.items():
            self._check(answer.error_code, group_id)
            found[group_id] = {}
            for topic in answer.topics:
                for entry in topic.partitions:
                    self._check(entry.error_code, group_id, f": {topic.name}-{entry.partition_index}")
                    if entry.committed_offset >= 0:
                        found[group_id][topic.name, entry.partition_index] = OffsetAndMetadata(
                            entry.committed_offset, entry.metadata or ""
                        )
        return found

    async def commit(
        self, group_id: str, offsets: Mapping[P, OffsetAndMetadata]
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets for a group without members, in one request; returns what was refused."""
        if not offsets:
            return {}
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(index, entry.offset, -1, entry.metadata)
                    for index, entry in partitions.items()
                ],
            )
            for name, partitions in by_topic(offsets).items()
        ]
        response = await self.cluster.call_coordinator(
            group_id,
            offset_commit.BY_NAME,
            OffsetCommitRequest(group_id=group_id, topics=topics),
            timeout=self.timeout,
        )
        refused = _refused(response.topics)
        for error in COORDINATOR_ERRORS.intersection(refused.values()):
            self._check(error, group_id)
        return refused

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete committed offsets of partitions that no member is subscribed to (KIP-496); returns what was
        refused."""
        topics = [
            OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in indexes])
            for name, indexes in by_topic(dict.fromkeys(partitions)).items()
        ]
        response = await self.cluster.call_coordinator(
            group_id, offset_delete.API, OffsetDeleteRequest(group_id, topics), timeout=self.timeout
        )
        self._check(response.error_code, group_id)
        return _refused(response.topics)

    async def delete_groups(self, ids: Collection[str]) -> dict[str, Refusal | None]:
        found: dict[str, Refusal | None] = {}
        for node, group_ids in (await self._by_coordinator(ids)).items():
            response = await self.cluster.call_node(
                node, delete_groups.API, DeleteGroupsRequest(group_ids), timeout=self.timeout
            )
            for result in response.results:
                if result.error_code in COORDINATOR_ERRORS:
                    self._check(result.error_code, result.group_id)
                found[result.group_id] = Refusal.of(result.error_code, result.error_message)
        return found

    def _check(self, code: int, group_id: str, where: str = "") -> None:
        """Raises ApiError for an error. The next request looks a coordinator up again that may have moved."""
        if code in COORDINATOR_ERRORS:
            self.cluster.forget_coordinator(group_id)
        if code:
            raise ApiError(ErrorCode.of(code), f"group {group_id}{where}")

    async def _by_coordinator(self, groups: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for group_id, node in (await self.cluster.coordinators(list(groups))).items():
            found.setdefault(node, []).append(group_id)
        return found


def _offset_topics(kind: Any, partitions: Collection[TopicPartition] | None) -> Any:
    if partitions is None:
        return None
    topics = by_topic(dict.fromkeys(partitions)).items()
    return [kind(name=name, partition_indexes=sorted(indexes)) for name, indexes in topics]


def _description(group: DescribedGroup) -> ConsumerGroupDescription:
    is_consumer = group.protocol_type == "consumer"
    members = [
        MemberDescription(
            member.client_id,
            member.client_host.removeprefix("/"),
            assigned_partitions(bytes(member.member_assignment)) if is_consumer else (),
        )
        for member in group.members
    ]
    return ConsumerGroupDescription(group.group_state or "Dead", tuple(members))


def _refused(topics: Iterable[Any]) -> dict[TopicPartition, ErrorCode]:
    return {
        (topic.name, partition.partition_index): ErrorCode.of(partition.error_code)
        for topic in topics
        for partition in topic.partitions
        if partition.error_code
    }
