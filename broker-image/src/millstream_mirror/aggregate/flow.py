"""Mode Aggregate: tasks number the records that they send, so that the target accepts each record once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millstream_kafka.protocol import produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import PartitionData
from millstream_kafka.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from millstream_kafka.topic_partition import TopicPartition

from ..partitions.partition_task import (
    BATCH_NOT_MIRRORED,
    MISMATCH,
    RECORD_TOO_LARGE,
    SOURCE_ENDS,
    PartitionTask,
    SentRequest,
)
from ..partitions.pipeline import PRODUCE_TIMEOUT_MS, TASK_BYTES, Flow, Numbered, Part
from ..records.aligning import Fingerprint
from ..records.rewrite import Outgoing, UnusableBatch, joined, rewrite
from ..runtime.slices import in_steps
from .target_state import last_record

_OUT_OF_STEP = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_TOO_LARGE = (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE)
_TOO_MUCH_AT_ONCE = (ErrorCode.INVALID_RECORD, *_TOO_LARGE)
AT_MOST = 1024
"""Batches of a task in one request, so that the target handles them in little time."""

logger = logging.getLogger(__name__)


class NumberingFlow(Flow):
    """Produces the batches of one source under the producer ids of their tasks."""

    async def _number(self, task: PartitionTask, data: PartitionData) -> Numbered:
        """The task's next batches, in parts for one Produce request each."""
        fetched = data.records
        if not isinstance(fetched, memoryview) or not len(fetched):
            if task.skip is not None and task.position >= data.high_watermark:
                self._misfits(task, SOURCE_ENDS)
            return []
        progress, before = task.acknowledged, task.at
        try:
            rewritten = await in_steps(
                rewrite(
                    fetched,
                    position=task.position,
                    producer_id=progress.producer_id,
                    producer_epoch=progress.producer_epoch,
                    sequence=task.sequence,
                    aborted=data.aborted_transactions or (),
                )
            )
        except (UnusableBatch, ApiError) as error:
            if task.at != before:
                return []
            task.fail(
                f"{task}: the source's next batch cannot be mirrored: {error}: this partition waits: repair the source,"
                f" or exclude topic {task.topic}",
                reason=BATCH_NOT_MIRRORED,
            )
            self._failure(task.error)
            self._wake.set()
            return []
        if task.at != before or not task.may_fetch(TASK_BYTES):
            return []  # it failed or recovered meanwhile
        batches = rewritten.batches
        if task.skip is not None:
            if task.skip.last is not None and not _has(batches, task.skip.to, task.skip.last):
                self._misfits(task, MISMATCH)
                return []
            rest = task.skip_present(batches, rewritten.position) if rewritten.is_dense else None
            if rest is None:
                self._misfits(task, "its numbers do not fit the source's offsets")
                return []
            self._counters.repeated_records += sum(batch.records for batch in batches) - sum(
                batch.records for batch in rest
            )
            batches = rest
        if not batches:
            task.moved_on(rewritten.position, rewritten.last)
            return []
        self._counters.rebuilt_batches += sum(batch.start < 0 for batch in batches)
        if task.probing:
            return [(batches[:1], batches[0].data)]
        if task.one_by_one:
            return [([batch], batch.data) for batch in task.take(batches)]
        parts = (batches[begin : begin + AT_MOST] for begin in range(0, len(batches), AT_MOST))
        return [(part, joined(fetched, part)) for part in parts]

    def _misfits(self, task: PartitionTask, why: str) -> None:
        task.fail(why)
        task.find(misfit=why)
        self._wake.set()

    async def _produce(self, node: int, parts: list[Part]) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        waiting: dict[TopicPartition, tuple[PartitionTask, SentRequest]] = {}
        for task, sent, data in parts:
            by_topic.setdefault(task.target_topic, []).append(PartitionProduceData(task.partition, data))
            waiting[task.target] = (task, sent)
        request = ProduceRequest(
            None,
            -1,
            PRODUCE_TIMEOUT_MS,
            [TopicProduceData(name, partition_data=of_topic) for name, of_topic in by_topic.items()],
        )

        async def send() -> None:
            response = await self._send(node, produce.BY_NAME, request)
            for topic in response.responses:
                for answer in topic.partition_responses:
                    task, sent = waiting.pop((topic.name, answer.index))
                    self._answered(task, sent, answer)

        await self._sending("producing", send, parts, waiting)

    def _answered(self, task: PartitionTask, sent: SentRequest, answer: PartitionProduceResponse) -> None:
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE or (error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and sent.batches == 1):
            self._counters.records += sent.records
            self._counters.bytes += sent.size
            task.written.records += sent.records
            task.written.bytes += sent.size
            task.succeeded(sent, answer.base_offset)
            return
        was_failed = task.has_failed
        task.fail(f"{task}: producing: {error.name}: {answer.error_message or error.message}", sent)
        if was_failed:
            return  # void because the previous one failed
        if sent.batches > 1 and error in _TOO_MUCH_AT_ONCE:
            task.one_by_one = True
            task.error = ""
        elif error in _OUT_OF_STEP:
            task.find(compare_target=True)
            logger.info("%s", task.error)
        elif error in _TOO_LARGE:
            task.reason = RECORD_TOO_LARGE
            task.error = (
                f"{task}: a batch of {sent.size} bytes is too large for topic {task.target_topic} in the target: raise"
                " its max.message.bytes"
            )
            self._failure(task.error)
        else:
            task.find(target_missing=error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._producing.forget_leaders(task.target_topic)
            self._failure(task.error)


def _has(batches: Sequence[Outgoing], number: int, record: Fingerprint) -> bool:
    """Whether the record before this number is the given one, if it ends one of the batches."""
    for batch in batches:
        if batch.next_sequence == number:
            there = last_record(batch.data)
            return there is None or there.equals(record)
    return True
