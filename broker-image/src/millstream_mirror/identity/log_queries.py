"""Identity mode: queries about the logs of many partitions, one request for each leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol import mirror_append, offset_for_leader_epoch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.mirror_append import (
    MirrorAppendRequest,
    MirrorPartition,
    MirrorPartitionResponse,
    MirrorTopic,
)
from millstream_kafka.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream_kafka.topic_partition import TopicPartition

from ..kafka.log_reader import LATEST, offsets_at
from ..partitions.assignment import Leaders
from ..partitions.partition_task import Side
from .flow import ReplicaTask

QUERY_TIMEOUT_MS = 5_000


class MustWait(Exception):
    """The task must not continue in this state; the message says why, and what to do.

    ``reason`` as in `PartitionTask`."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


A = TypeVar("A")
Trouble = MustWait | ApiError | BrokerError


class LogQueries:
    """Errors of single partitions are returned in place of their results."""

    def __init__(self, at_source: ClusterClient, at_target: ClusterClient) -> None:
        self._at_source = at_source
        self._at_target = at_target

    async def target_logs(
        self, tasks: Mapping[ReplicaTask, Leaders]
    ) -> dict[ReplicaTask, MirrorPartitionResponse | Trouble]:
        """The ends of the target's logs, and their last batches."""
        by_target = {task.target: task for task in tasks}

        async def ask(node: int, keys: list[TopicPartition]) -> dict[TopicPartition, MirrorPartitionResponse]:
            topics: dict[str, MirrorTopic] = {}
            for key in keys:
                topic = topics.setdefault(key[0], MirrorTopic(key[0], by_target[key].topic_id, []))
                topic.partitions.append(MirrorPartition(key[1]))
            cluster_id = by_target[keys[0]].acknowledged.cluster_id
            request = MirrorAppendRequest(cluster_id, QUERY_TIMEOUT_MS, list(topics.values()))
            response = await self._at_target.call_node(node, mirror_append.API, request)
            return {(topic.name, end.index): end for topic in response.topics for end in topic.partitions}

        found: dict[ReplicaTask, MirrorPartitionResponse | Trouble] = {}
        leaders = {task.target: of_task.target for task, of_task in tasks.items()}
        for key, answer in (await _by_leader(leaders, [*by_target], ask)).items():
            task = by_target[key]
            found[task] = answer
            if isinstance(answer, MirrorPartitionResponse) and answer.error_code:
                error = ErrorCode.of(answer.error_code)
                message = answer.error_message or f"{task}: {error.message} in the target"
                must_wait = error in (ErrorCode.POLICY_VIOLATION, ErrorCode.INCONSISTENT_TOPIC_ID)
                found[task] = MustWait(message) if must_wait else ApiError(error, message)
        return found

    async def high_watermarks(
        self, tasks: Mapping[ReplicaTask, Leaders]
    ) -> dict[ReplicaTask, int | ApiError | BrokerError]:
        """The high watermarks in the target."""

        async def ask(node: int, keys: list[TopicPartition]) -> dict[TopicPartition, int | ApiError]:
            answers = await offsets_at(self._at_target, node, keys, LATEST)
            return {
                key: _refusal(key[0], offset.error_code, "target") or offset.offset
                for key, offset in answers.items()
            }

        leaders = {task.target: of_task.target for task, of_task in tasks.items()}
        found = await _by_leader(leaders, [*leaders], ask)
        return {task: found[task.target] for task in tasks}

    async def epochs(
        self,
        leaders: Mapping[TopicPartition, int],
        under: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, tuple[int, int] | ApiError | BrokerError]:
        """The source's largest epoch up to the given one, and its end; ``under`` has the leaders' epochs."""

        async def ask(
            node: int, keys: list[TopicPartition]
        ) -> dict[TopicPartition, tuple[int, int] | ApiError]:
            topics: dict[str, OffsetForLeaderTopic] = {}
            for key in keys:
                topic = topics.setdefault(key[0], OffsetForLeaderTopic(key[0], []))
                topic.partitions.append(OffsetForLeaderPartition(key[1], under[key], max(epochs[key], 0)))
            request = OffsetForLeaderEpochRequest(topics=list(topics.values()))
            response = await self._at_source.call_node(node, offset_for_leader_epoch.API, request)
            return {
                (topic.topic, answer.partition): _refusal(topic.topic, answer.error_code)
                or (answer.leader_epoch, answer.end_offset)
                for topic in response.topics
                for answer in topic.partitions
            }

        return await _by_leader(leaders, [*leaders], ask)

    async def offsets(
        self, leaders: Mapping[TopicPartition, int], timestamp: int
    ) -> dict[TopicPartition, int | ApiError | BrokerError]:
        """The source's offsets for a timestamp."""

        async def ask(node: int, keys: list[TopicPartition]) -> dict[TopicPartition, int | ApiError]:
            answers = await offsets_at(self._at_source, node, keys, timestamp)
            return {
                key: _refusal(key[0], offset.error_code) or offset.offset for key, offset in answers.items()
            }

        return await _by_leader(leaders, [*leaders], ask)


def _refusal(topic: str, code: int, side: Side = "source") -> ApiError | None:
    return ApiError(ErrorCode.of(code), f"topic {topic} in the {side}") if code else None


async def _by_leader(
    leaders: Mapping[TopicPartition, int],
    keys: Sequence[TopicPartition],
    ask: Callable[[int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, A]]],
) -> dict[TopicPartition, A | ApiError | BrokerError]:
    """Query each leader once; return a response or an error for every partition."""
    missing = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "a partition has no leader at the moment")
    found: dict[TopicPartition, A | ApiError | BrokerError] = dict.fromkeys(keys, missing)
    by_node: dict[int, list[TopicPartition]] = {}
    for key in keys:
        if key in leaders:
            by_node.setdefault(leaders[key], []).append(key)

    async def query(node: int, of_node: list[TopicPartition]) -> None:
        try:
            found.update(await ask(node, of_node))
        except BrokerError as error:
            found.update(dict.fromkeys(of_node, error))

    await asyncio.gather(*(query(node, of_node) for node, of_node in by_node.items()))
    return found
