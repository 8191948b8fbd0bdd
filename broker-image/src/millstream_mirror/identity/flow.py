"""Identity mode: tasks forward batches unchanged, to the same offsets as in the source.

The target's log is the progress: MirrorAppend accepts batches only at its end (`protocol.mirror_append`), so batches
that are repeated, late, or sent by two workers change nothing.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from millstream_kafka.batch import iter_batches
from millstream_kafka.protocol import mirror_append
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import PartitionData
from millstream_kafka.protocol.mirror_append import (
    MirrorAppendRequest,
    MirrorPartition,
    MirrorPartitionResponse,
    MirrorTopic,
)
from millstream_kafka.topic_partition import TopicPartition

from ..kafka.progress import Progress
from ..partitions.partition_task import DIVERGED, PartitionTask, SentRequest
from ..partitions.pipeline import PRODUCE_TIMEOUT_MS, TASK_BYTES, Flow, Numbered, Part
from ..records.offset_map import OffsetMap
from ..records.rewrite import Outgoing
from ..runtime.slices import in_turns

_EXPECTED = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Errors after a failover, for batches that another worker has sent, or while the target takes a new leader epoch."""
_TO_REPEAT = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Nothing was appended: the task may repeat the batches, and the target checks again that they follow."""

logger = logging.getLogger(__name__)


class Unchanged(OffsetMap):
    """Positions of consumer groups stay the same in the target, up to the end of its log."""

    def __init__(self, task: ReplicaTask) -> None:
        super().__init__(task.acknowledged)
        self._task = task

    def find(self, offset: int) -> int:
        return min(offset, self._task.acknowledged.target_offset)


@dataclass(slots=True, eq=False)
class ReplicaRequest(SentRequest):
    from_offset: int = 0
    """The end of the target's log before these batches."""
    log_start: int = 0


@dataclass(slots=True, eq=False)
class ReplicaTask(PartitionTask):
    """``acknowledged.target_offset`` is the end of the target's log; ``position`` is the next source offset."""

    end: int = 0
    """The end of the target's log once everything sent is there."""
    source_start: int = 0
    target_start: int = 0
    repeats: bool = False
    """Failed requests may be repeated without comparing the logs: the target accepts batches only where they belong."""

    def __post_init__(self) -> None:
        PartitionTask.__post_init__(self)
        self.offsets = Unchanged(self)

    def rewind(self, to: Progress) -> None:
        PartitionTask.rewind(self, to)
        self.end = to.target_offset
        self.repeats = False

    @property
    def topic_id(self) -> uuid.UUID:
        return uuid.UUID(self.acknowledged.topic_id)

    @property
    def has_to_act(self) -> bool:
        """Whether the start of the target's log must follow the source's."""
        return self.source_start > self.target_start

    def may_fetch(self, limit: int) -> bool:
        """False while a request without batches may move the end of the target's log."""
        return PartitionTask.may_fetch(self, limit) and not (
            self.in_flight and not self.in_flight[-1].batches
        )

    def send(self, batches: list[Outgoing]) -> SentRequest:
        """Send batches, or, without any, only the start of the source's log.

        Records continue the target's log after those sent before, or leave a hole if these are lost: ``from_offset`` is
        never below their end.
        """
        next_offset = batches[-1].next_offset if batches else self.end
        sent = ReplicaRequest(
            next_offset,
            0,
            sum(batch.records for batch in batches),
            sum(len(batch.data) for batch in batches),
            len(batches),
            from_offset=self.end,
            log_start=self.source_start,
        )
        self.repeats = False
        self.end = next_offset
        self.position = max(self.position, next_offset)
        self.in_flight.append(sent)
        self.bytes_in_flight += sent.size
        return sent

    def appended(self, sent: SentRequest, answer: MirrorPartitionResponse) -> None:
        self.target_start = answer.log_start_offset
        is_last = bool(self.in_flight) and self.in_flight[-1] is sent
        if (
            not sent.batches and is_last and not self.has_failed
        ):  # the log may have moved to the source's start
            sent.next_offset = self.end = max(self.end, answer.log_end_offset)
            self.position = max(self.position, self.end)
        self.succeeded(sent, sent.next_offset - sent.records)


class CopyFlow(Flow):
    """Forwards the tasks of one source to MirrorAppend, with open and aborted transactions and their markers."""

    is_committed = False

    async def _number(self, task: PartitionTask, data: PartitionData) -> Numbered:
        """The next batches, unchanged; none if only the start of the source's log has moved."""
        assert isinstance(task, ReplicaTask)
        task.source_start = max(task.source_start, data.log_start_offset)
        fetched = data.records
        if not isinstance(fetched, memoryview) or not len(fetched):
            is_behind = task.source_start > task.target_start
            # The response may have had no room: then the next batch may begin before the source's start.
            is_all = data.high_watermark <= task.position or task.source_start <= task.end
            return [([], b"")] if is_behind and is_all and not task.in_flight else []
        batches: list[Outgoing] = []
        begin = end = 0
        problem = ""
        position, task_end, before = task.position, task.end, task.at
        async for at, header in in_turns(iter_batches(fetched)):
            if header.next_offset <= position:
                continue
            problem = _unusable(header.base_offset, 0 if batches else task_end)
            if problem:
                break
            begin = begin if batches else at
            end = at + header.size
            batches.append(Outgoing(fetched[at:end], at, 0, 0, header.next_offset, header.record_count))
        if (task.at, task.end) != (before, task_end) or not task.may_fetch(TASK_BYTES):
            return []  # it failed or recovered meanwhile
        if problem and not batches:
            task.fail(f"{task}: {problem}", reason=DIVERGED)
            self._failure(task.error)
            self._wake.set()
        return [(batches, fetched[begin:end])] if batches else []

    async def _produce(self, node: int, parts: list[Part]) -> None:
        topics: dict[str, MirrorTopic] = {}
        waiting: dict[TopicPartition, tuple[ReplicaTask, ReplicaRequest]] = {}
        cluster_id = ""
        for task, sent, data in parts:
            assert isinstance(task, ReplicaTask)
            assert isinstance(sent, ReplicaRequest)
            cluster_id = task.acknowledged.cluster_id
            topic = topics.setdefault(task.target_topic, MirrorTopic(task.target_topic, task.topic_id, []))
            topic.partitions.append(
                MirrorPartition(task.partition, sent.from_offset, sent.log_start, data or None)
            )
            waiting[task.target] = task, sent
        request = MirrorAppendRequest(cluster_id, PRODUCE_TIMEOUT_MS, list(topics.values()))

        async def send() -> None:
            response = await self._send(node, mirror_append.API, request)
            for answered in response.topics:
                for answer in answered.partitions:
                    task, sent = waiting.pop((answered.name, answer.index))
                    self._taken(task, sent, answer)

        await self._sending("mirroring", send, parts, waiting)

    def _taken(self, task: ReplicaTask, sent: ReplicaRequest, answer: MirrorPartitionResponse) -> None:
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE:
            self._counters.records += sent.records
            self._counters.bytes += sent.size
            task.written.records += sent.records
            task.written.bytes += sent.size
            task.appended(sent, answer)
            return
        was_failed = task.has_failed
        task.fail(f"{task}: mirroring: {error.name}: {answer.error_message or error.message}", sent)
        if was_failed:
            return  # void because the previous one failed
        task.repeats = error in _TO_REPEAT
        if answer.log_end_offset < 0:  # this broker is not the leader
            self._producing.forget_leaders(task.target_topic)
        if error in _EXPECTED:
            logger.info("%s", task.error)
        else:
            self._failure(task.error)


def _unusable(base_offset: int, end: int) -> str:
    """Why a batch must not be appended to the target; empty if it may."""
    if base_offset < end:
        return (
            f"diverged: the source's batch at offset {base_offset} reaches across offset {end}, where the target ends:"
            " promote the topic to keep it, or delete it in the target to mirror the source from its start"
        )
    return ""
