"""The progress of a lane, as committed in the target; the package's docstring explains why it suffices.

Stored by OffsetCommit: group ``millstream-mirror.NAME.SOURCE``, the target's topic and partition, the source offset
as the offset, and as metadata a JSON object:

    {"v": 1, "producer": [id, epoch, sequence], "first": source offset, "end": target offset, "topicId": "…",
     "cluster": "…", "at": ms, "gap": [first offset, next offset, ms], "origins": ["…"]}
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import offset_fetch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream_kafka.topic_partition import TopicPartition

from .committed import Position, commit, is_moved

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that the source deleted before they were mirrored, from ``offset`` to before ``next_offset``."""

    offset: int
    next_offset: int
    at_ms: int
    """When it was passed, or found by a lane that stops there."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Every record before ``offset`` is in the target; the one at ``offset`` has the number ``sequence``."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    target_offset: int
    """Records sent since lie at or behind this offset of the target's partition."""
    topic_id: str
    """Id of the source's topic, so that a recreated topic is not appended to the old one's copy."""
    cluster_id: str
    """Id of the source cluster, so that other mirrors can tell where a topic comes from."""
    caught_up_ms: int
    """When the lane was last caught up."""
    gap: Gap | None = None
    origins: tuple[str, ...] = ()
    """Ids of the clusters from which the topic's records came to the source cluster."""
    first: int = -1
    """The source offset of the record with number 0; -1 in progress of older releases."""

    def metadata(self) -> str:
        gap = {"gap": [self.gap.offset, self.gap.next_offset, self.gap.at_ms]} if self.gap else {}
        origins = {"origins": self.origins} if self.origins else {}
        return json.dumps(
            {
                **gap,
                **origins,
                "v": _VERSION,
                "producer": [self.producer_id, self.producer_epoch, self.sequence],
                "first": self.first,
                "end": self.target_offset,
                "topicId": self.topic_id,
                "cluster": self.cluster_id,
                "at": self.caught_up_ms,
            },
            separators=(",", ":"),
        )

    @classmethod
    def read(cls, offset: int, metadata: str) -> Progress:
        """Raises ValueError."""
        try:
            stored = json.loads(metadata)
            if stored["v"] != _VERSION:
                raise ValueError(f"version {stored['v']}")
            producer_id, epoch, sequence = map(int, stored["producer"])
            return cls(
                offset,
                producer_id,
                epoch,
                sequence,
                int(stored["end"]),
                str(stored["topicId"]),
                str(stored["cluster"]),
                int(stored["at"]),
                Gap(*map(int, stored["gap"])) if "gap" in stored else None,
                tuple(map(str, stored.get("origins", ()))),
                int(stored.get("first", -1)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a mirror's progress: {metadata!r} ({error})") from None


class ProgressStore:
    """Reads and commits progress in the target. Raises BrokerError, ApiError."""

    def __init__(self, target: ClusterClient, group_id: str) -> None:
        self._target = target
        self.group_id = group_id

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Progress]:
        """The progress of those partitions that have any. Raises ValueError too."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        request = OffsetFetchRequest(
            self.group_id,
            [OffsetFetchRequestTopic(topic, indexes) for topic, indexes in by_topic.items()],
            [
                offset_fetch.OffsetFetchRequestGroup(
                    self.group_id,
                    [OffsetFetchRequestTopics(topic, indexes) for topic, indexes in by_topic.items()],
                )
            ],
            require_stable=True,
        )
        response = await self._target.call_coordinator(self.group_id, offset_fetch.API, request)
        self._check(response.groups[0].error_code if response.groups else response.error_code)
        found = {}
        for answer in response.groups[0].topics if response.groups else response.topics:
            for each in answer.partitions:
                self._check(each.error_code)
                if each.committed_offset >= 0:
                    progress = Progress.read(each.committed_offset, each.metadata or "")
                    found[answer.name, each.partition_index] = progress
        return found

    async def commit(
        self, progress: Mapping[TopicPartition, Progress], member_id: str, generation: int
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit as a member of the group: one that was replaced is refused. Returns the error code of each."""
        positions = {where: Position(one.offset, one.metadata()) for where, one in progress.items()}
        return await commit(self._target, self.group_id, positions, member_id, generation)

    def _check(self, code: int) -> None:
        if code:
            error = ErrorCode.of(code)
            if is_moved(error):
                self._target.forget_coordinator(self.group_id)
            raise ApiError(error, f"reading the progress of {self.group_id}: {error.message}")
