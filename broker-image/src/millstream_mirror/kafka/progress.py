"""The progress of a task, as committed in the target; the package's docstring explains why it suffices.

Stored by OffsetCommit: group ``millstream-mirror.NAME.SOURCE``, the target's topic and partition, the source offset
as the offset, and as metadata a JSON object:

    {"v": 1, "producer": [id, epoch, sequence], "first": source offset, "end": target offset, "topicId": "…",
     "cluster": "…", "at": ms, "gap": [first offset, next offset, ms], "origins": ["…"],
     "left": true, "source": [end, ms], "last": [source offset, crc, leader epoch], "target": "…",
     "new": true, "groups": {"…": target offset}}
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from millstream_kafka.batch import INT32_MAX
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import offset_fetch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream_kafka.topic_partition import TopicPartition, by_topic

from .group_offsets import Position, commit, is_moved

_VERSION: Literal[1] = 1
RENAMED = {"topic_id": "topicId", "is_deselected": "left", "is_new": "new"}
MAX_ID = 255
MAX_ORIGINS = 64
SHOWN = 200
"""Characters of unreadable metadata to show in an error."""
MOST_GROUPS = 64
MOST_BYTES = 4000
"""Of metadata: Kafka accepts 4096 by default (offset.metadata.max.bytes). Groups are left out first."""


Offset = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Epoch = Annotated[int, Meta(ge=-(1 << 15), le=(1 << 15) - 1)]
Number = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Id = Annotated[str, Meta(max_length=MAX_ID)]


class _Stored(Struct, frozen=True, omit_defaults=True, kw_only=True, rename=RENAMED):
    """The JSON object. Raises ValueError for ids that cannot be printed."""

    v: Literal[1]
    producer: tuple[Offset, Epoch, Number]
    end: Offset
    topic_id: Id
    cluster: Id
    at: Offset
    first: Offset = -1
    gap: tuple[Offset, Offset, Offset] | UnsetType = UNSET
    origins: Annotated[tuple[Id, ...], Meta(max_length=MAX_ORIGINS)] = ()
    is_deselected: bool = False
    source: tuple[Offset, Offset] = (-1, 0)
    last: tuple[Offset, Offset, Offset] | UnsetType = UNSET
    target: Id = ""
    is_new: bool = False
    groups: Annotated[dict[Id, Offset], Meta(max_length=MOST_GROUPS)] = {}

    def __post_init__(self) -> None:
        for text in (self.topic_id, self.cluster, self.target, *self.origins, *self.groups):
            if not text.isprintable():
                raise ValueError("an id has characters that cannot be printed")


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that the source deleted before they were mirrored, from ``offset`` to before ``next_offset``."""

    offset: int
    next_offset: int
    at_ms: int
    """When it was passed, or found by a task that stopped there."""


class LastBatch(NamedTuple):
    """The last batch of the source that was passed: mirrored or left out."""

    offset: int
    """Its first offset."""
    crc: int
    epoch: int
    """Its leader epoch."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Every record before ``offset`` is in the target; the one at ``offset`` has the number ``sequence``."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    target_offset: int
    """Later records are at or after this offset of the target's partition."""
    topic_id: str
    """Id of the source's topic, so that a recreated topic's records are not appended to the old topic's copy."""
    cluster_id: str
    """Id of the source cluster, by which other mirrors find the origin of a topic."""
    caught_up_ms: int
    """When the task was last caught up, or began."""
    gap: Gap | None = None
    origins: tuple[str, ...] = ()
    """Ids of the clusters from which the topic's records came to the source cluster."""
    first: int = -1
    """The source offset of the record with number 0; -1 in progress of older releases."""
    source_end: int = -1
    """The end of the source's log, as last seen; -1 if unknown. A promotion without the source reports it."""
    observed_ms: int = 0
    """When that end was first seen."""
    is_deselected: bool = False
    """The mirror's patterns no longer select the topic (selection/deselected.py)."""
    last: LastBatch | None = None
    """Tells whether the source still has what was mirrored (aggregate/history.py); None before the first batch."""
    target_id: str = ""
    """Id of the target's topic: a recreated topic has none of the records. Empty in progress of older releases."""
    is_new: bool = False
    """The task has not been caught up yet since it began."""
    groups: tuple[tuple[str, int], ...] = ()
    """The offsets in the target that the mirror has committed for groups, the latest ones last; by `group_key`."""

    @property
    def is_dense(self) -> bool:
        """Whether the numbers count offsets: the source had no holes in what was mirrored."""
        return self.first >= 0 and (self.offset - self.first) & INT32_MAX == self.sequence

    def metadata(self) -> str:
        groups = self.groups
        while len(encoded := self._stored(groups)) > MOST_BYTES and groups:
            groups = groups[1 + len(groups) // 8 :]
        return encoded.decode()

    def _stored(self, groups: tuple[tuple[str, int], ...]) -> bytes:
        stored = _Stored(
            v=_VERSION,
            producer=(self.producer_id, self.producer_epoch, self.sequence),
            end=self.target_offset,
            topic_id=self.topic_id,
            cluster=self.cluster_id,
            at=self.caught_up_ms,
            first=self.first,
            gap=(self.gap.offset, self.gap.next_offset, self.gap.at_ms) if self.gap else UNSET,
            origins=self.origins,
            is_deselected=self.is_deselected,
            source=(self.source_end, self.observed_ms) if self.source_end >= 0 else (-1, 0),
            last=(self.last.offset, self.last.crc, self.last.epoch) if self.last else UNSET,
            target=self.target_id,
            is_new=self.is_new,
            groups=dict(groups),
        )
        return msgspec.json.encode(stored)

    def committed_for(self, group: str) -> int | None:
        """The offset in the target that the mirror has last committed for a group; None if it is not known."""
        return dict(self.groups).get(group_key(group))

    def with_committed(self, group: str, target_offset: int) -> Progress:
        key = group_key(group)
        others = [committed for committed in self.groups if committed[0] != key]
        return replace(self, groups=(*others[1 - MOST_GROUPS :], (key, target_offset)))

    @classmethod
    def read(cls, offset: int, metadata: str) -> Progress:
        """Raises ValueError for metadata that no mirror writes: every client may commit there."""
        try:
            stored = msgspec.json.decode(metadata, type=_Stored)
        except RecursionError:
            problem = "nested too deeply"
        except (msgspec.DecodeError, ValueError) as error:
            problem = str(error)[:SHOWN]
        else:
            return cls(
                offset,
                *stored.producer,
                stored.end,
                stored.topic_id,
                stored.cluster,
                stored.at,
                Gap(*stored.gap) if stored.gap is not UNSET else None,
                stored.origins,
                stored.first,
                *stored.source,
                stored.is_deselected,
                LastBatch(*stored.last) if stored.last is not UNSET else None,
                stored.target,
                stored.is_new,
                tuple(stored.groups.items()),
            )
        raise ValueError(f"not a mirror's progress: {metadata[:SHOWN]!r} ({problem!r})")


def target_number(topic_id: str) -> int:
    """A number from the topic id of the target, which differs for a recreated topic; -1 without an id.

    Mode Identity has no producer id, and stores this number in its place."""
    return uuid.UUID(topic_id).int >> 65 if topic_id else -1


def group_key(group: str) -> str:
    """Stands for the name of a group, which may be long."""
    return base64.urlsafe_b64encode(hashlib.blake2b(group.encode(), digest_size=6).digest()).decode()


class ProgressStore:
    """Reads and commits progress in the target. Raises BrokerError, ApiError."""

    def __init__(self, target: ClusterClient, group_id: str) -> None:
        self._target = target
        self.group_id = group_id

    async def read(
        self, partitions: Collection[TopicPartition], *, skip_unreadable: bool = False
    ) -> dict[TopicPartition, Progress]:
        """The progress of those partitions that have any.

        Also raises ValueError for metadata that no worker writes, unless such partitions are skipped.
        """
        topics = by_topic(partitions)
        request = OffsetFetchRequest(
            self.group_id,
            [OffsetFetchRequestTopic(topic, indexes) for topic, indexes in topics.items()],
            [
                offset_fetch.OffsetFetchRequestGroup(
                    self.group_id,
                    topics=[
                        OffsetFetchRequestTopics(topic, partition_indexes=indexes)
                        for topic, indexes in topics.items()
                    ],
                )
            ],
            require_stable=True,
        )
        response = await self._target.call_coordinator(self.group_id, offset_fetch.BY_NAME, request)
        self._check(response.groups[0].error_code if response.groups else response.error_code)
        found = {}
        for answer in response.groups[0].topics if response.groups else response.topics:
            for each in answer.partitions:
                self._check(each.error_code)
                if each.committed_offset >= 0:
                    try:
                        progress = Progress.read(each.committed_offset, each.metadata or "")
                    except ValueError as error:
                        if skip_unreadable:
                            continue
                        where = f"group {self.group_id}, {answer.name}-{each.partition_index}"
                        raise ValueError(f"{where}: {error}") from None
                    found[answer.name, each.partition_index] = progress
        return found

    async def commit(
        self, progress: Mapping[TopicPartition, Progress], member_id: str, generation: int
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit as a member of the group; former members are refused. Returns each partition's error code."""
        positions = {
            where: Position(of_partition.offset, of_partition.metadata())
            for where, of_partition in progress.items()
        }
        return await commit(self._target, self.group_id, positions, member_id, generation)

    def _check(self, code: int) -> None:
        if code:
            error = ErrorCode.of(code)
            if is_moved(error):
                self._target.forget_coordinator(self.group_id)
            raise ApiError(error, f"reading the progress of {self.group_id}: {error.message}")
