"""Mode Aggregate: lanes number the records that they send, so that the target accepts each record once."""

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
    Lane,
    Sent,
)
from ..partitions.pipeline import LANE_BYTES, PRODUCE_TIMEOUT_MS, Flow, Numbered, Part
from ..records.aligning import Fingerprint
from ..records.rewrite import Outgoing, UnusableBatch, joined, rewrite
from ..runtime.slices import in_steps
from .target_state import last_record

_OUT_OF_STEP = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_TOO_LARGE = (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE)
_TOO_MUCH_AT_ONCE = (ErrorCode.INVALID_RECORD, *_TOO_LARGE)
AT_MOST = 1024
"""Batches of a lane in one request, so that the target handles them in little time."""

logger = logging.getLogger(__name__)


class NumberingFlow(Flow):
    """Produces the batches of one source under the producer ids of their lanes."""

    async def _number(self, lane: Lane, data: PartitionData) -> Numbered:
        """The lane's next batches, in parts for one Produce request each."""
        fetched = data.records
        if not isinstance(fetched, memoryview) or not len(fetched):
            if lane.skip_to is not None and lane.position >= data.high_watermark:
                self._misfits(lane, SOURCE_ENDS)
            return []
        progress, before = lane.acknowledged, lane.at
        try:
            rewritten = await in_steps(
                rewrite(
                    fetched,
                    position=lane.position,
                    producer_id=progress.producer_id,
                    producer_epoch=progress.producer_epoch,
                    sequence=lane.sequence,
                    aborted=data.aborted_transactions or (),
                )
            )
        except (UnusableBatch, ApiError) as error:
            if lane.at != before:
                return []
            lane.fail(
                f"{lane}: the source's next batch cannot be mirrored: {error}: this partition waits: repair the source,"
                f" or exclude topic {lane.topic}",
                reason=BATCH_NOT_MIRRORED,
            )
            self._failure(lane.error)
            self._wake.set()
            return []
        if lane.at != before or not lane.may_fetch(LANE_BYTES):
            return []  # it failed or recovered meanwhile
        batches = rewritten.batches
        if lane.skip_to is not None:
            if lane.last_there is not None and not _has(batches, lane.skip_to, lane.last_there):
                self._misfits(lane, MISMATCH)
                return []
            rest = lane.skip(batches, rewritten.position) if rewritten.is_dense else None
            if rest is None:
                self._misfits(lane, "its numbers do not fit the source's offsets")
                return []
            self._counters.repeated_records += sum(one.records for one in batches) - sum(
                one.records for one in rest
            )
            batches = rest
        if not batches:
            lane.moved_on(rewritten.position, rewritten.last)
            return []
        self._counters.rebuilt_batches += sum(batch.start < 0 for batch in batches)
        if lane.probing:
            return [(batches[:1], batches[0].data)]
        if lane.one_by_one:
            return [([batch], batch.data) for batch in lane.take(batches)]
        parts = (batches[begin : begin + AT_MOST] for begin in range(0, len(batches), AT_MOST))
        return [(part, joined(fetched, part)) for part in parts]

    def _misfits(self, lane: Lane, why: str) -> None:
        lane.misfits = why
        lane.fail(why)
        self._wake.set()

    async def _produce(self, node: int, parts: list[Part]) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        waiting: dict[TopicPartition, tuple[Lane, Sent]] = {}
        for lane, sent, data in parts:
            by_topic.setdefault(lane.target_topic, []).append(PartitionProduceData(lane.partition, data))
            waiting[lane.target] = (lane, sent)
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
                    lane, sent = waiting.pop((topic.name, answer.index))
                    self._answered(lane, sent, answer)

        await self._sending("producing", send, parts, waiting)

    def _answered(self, lane: Lane, sent: Sent, answer: PartitionProduceResponse) -> None:
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE or (error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and sent.batches == 1):
            self._counters.records += sent.records
            self._counters.bytes += sent.size
            lane.written.records += sent.records
            lane.written.bytes += sent.size
            lane.succeeded(sent, answer.base_offset)
            return
        was_failed = lane.failed
        lane.fail(f"{lane}: producing: {error.name}: {answer.error_message or error.message}", sent)
        if was_failed:
            return  # void because the previous one failed
        if sent.batches > 1 and error in _TOO_MUCH_AT_ONCE:
            lane.one_by_one = True
            lane.error = ""
        elif error in _OUT_OF_STEP:
            lane.suspicious = True
            logger.info("%s", lane.error)
        elif error in _TOO_LARGE:
            lane.reason = RECORD_TOO_LARGE
            lane.error = (
                f"{lane}: a batch of {sent.size} bytes is too large for topic {lane.target_topic} in the target: raise"
                " its max.message.bytes"
            )
            self._failure(lane.error)
        else:
            lane.target_missing = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._producing.forget_leaders(lane.target_topic)
            self._failure(lane.error)


def _has(batches: Sequence[Outgoing], number: int, record: Fingerprint) -> bool:
    """Whether the record before this number is the given one, if it ends one of the batches."""
    for batch in batches:
        if batch.next_sequence == number:
            there = last_record(batch.data)
            return there is None or there.equals(record)
    return True
