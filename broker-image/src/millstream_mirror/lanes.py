"""Opens lanes, and finds the position of one after a failure. See the package's docstring for the reasoning."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from millstream_kafka.batch import INT32_MAX, advance_sequence
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.topic_partition import TopicPartition

from . import topics
from .config import OnGap
from .lane import HALF_OF_SEQUENCES, Lane
from .member import LaneName
from .producer_ids import new_producer
from .progress import Gap, Progress, ProgressStore
from .reading import EARLIEST, LATEST, headers_in, offset_at, read
from .sent import sent_since, unsent_from
from .stats import Counters
from .topics import id_of, is_same

CALLS_AT_ONCE = 32
SCAN_BYTES = 4 * 1024 * 1024
STALE_MS = 12 * 3600 * 1000
"""The target may forget producers after a day (producer.id.expiration.ms): progress older than this is checked against
the target's batches first."""
LAST_EPOCH = 32767
REMOVAL_LOOK_S = 2.0
"""How often the lane of a replaced topic checks whether the old topic's copy is deleted."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
Commit = Callable[[Mapping[TopicPartition, Progress]], Awaitable[None]]


class LaneKeeper:
    """Opens and recovers the lanes of one source. Raises BrokerError, ApiError; ValueError for unreadable progress."""

    def __init__(
        self,
        at_source: ClusterClient,
        at_target: ClusterClient,
        store: ProgressStore,
        commit: Commit,
        counters: Counters,
        on_gap: OnGap = OnGap.SKIP_TO_EARLIEST,
        origins: Callable[[str], tuple[str, ...]] = lambda topic: (),
    ) -> None:
        """``origins`` returns the ids of the clusters from which a topic's records come to the source."""
        self._on_gap = on_gap
        self._origins = origins
        self._at_source = at_source
        self._at_target = at_target
        self._store = store
        self._commit = commit
        self._counters = counters

    # ---- opening

    async def open(self, names: Sequence[LaneName]) -> tuple[list[Lane], dict[LaneName, str]]:
        """Open lanes at their progress, or, without any, at the start of the source's partition. Those wait of which
        a partition has no leader."""
        waiting = await self._without_leader(names)
        return await self._open([name for name in names if name not in waiting]), waiting

    async def _without_leader(self, names: Sequence[LaneName]) -> dict[LaneName, str]:
        (ids, here, _), (target_ids, there, _) = await asyncio.gather(
            topics.leaders_of(self._at_source, {name.topic for name in names}),
            topics.leaders_of(self._at_target, {name.target_topic for name in names}),
        )
        waiting = {}
        for name in names:
            if name.topic not in ids:
                waiting[name] = (
                    f"topic {name.topic} is not there in the source, or the mirror may not read it"
                )
            elif (name.topic, name.partition) not in here:
                waiting[name] = f"{name.topic}-{name.partition} has no leader in the source"
            elif name.target_topic not in target_ids:
                waiting[name] = (
                    f"topic {name.target_topic} is not there in the target, or the mirror may not see it"
                )
            elif (name.target_topic, name.partition) not in there:
                waiting[name] = f"{name.target_topic}-{name.partition} has no leader in the target"
        return waiting

    async def _open(self, names: Sequence[LaneName]) -> list[Lane]:
        stored = await self._store.read([(name.target_topic, name.partition) for name in names])
        if left := {where: replace(one, is_left=False) for where, one in stored.items() if one.is_left}:
            await self._commit(left)  # before sending, so that no other mirror takes them now
            stored |= left
        cluster_id = self._at_source.cluster_id or ""
        lanes, taken_over, new = [], [], []
        for name in names:
            progress = stored.get((name.target_topic, name.partition))
            if progress is None:
                new.append(name)
            elif is_same(progress.topic_id, name.topic_id) and is_same(progress.cluster_id, cluster_id):
                lane = Lane(name.topic, name.partition, name.target_topic, progress, committed=progress)
                lane.suspicious = _now_ms() - progress.caught_up_ms > STALE_MS
                taken_over.append(lane)
            else:
                of_new = replace(progress, offset=0, topic_id=name.topic_id, cluster_id=cluster_id)
                lane = Lane(name.topic, name.partition, name.target_topic, of_new, committed=of_new)
                lane.replaced = lane.failed = True
                lanes.append(lane)
        begun = await self._begin(new, cluster_id)
        lanes += [*taken_over, *begun]
        compacted = await topics.compacted(self._at_source, {lane.topic for lane in lanes})
        ends = await _gather(offset_at(self._at_source, lane.source, LATEST) for lane in lanes)
        for lane, end in zip(lanes, ends, strict=True):
            lane.is_compacted = lane.topic in compacted
            lane.saw(end)
        await _gather(self._continue(lane) for lane in taken_over if lane.suspicious or lane.is_compacted)
        for lane in lanes:
            lane.recovering = False
        return lanes

    async def _begin(self, names: Sequence[LaneName], cluster_id: str) -> list[Lane]:
        """Open new lanes; their progress is committed before they send anything."""
        if not names:
            return []
        starts = await _gather(
            offset_at(self._at_source, (each.topic, each.partition), EARLIEST) for each in names
        )
        ends = await _gather(
            offset_at(self._at_target, (each.target_topic, each.partition), LATEST) for each in names
        )
        producers = await _gather(self._new_producer() for _ in names)
        lanes = []
        for name, start, end, producer in zip(names, starts, ends, producers, strict=True):
            progress = Progress(
                start,
                producer,
                0,
                0,
                end,
                name.topic_id,
                cluster_id,
                _now_ms(),
                first=start,
                origins=self._origins(name.topic),
            )
            lanes.append(Lane(name.topic, name.partition, name.target_topic, progress))
        await self._commit({lane.target: lane.acknowledged for lane in lanes})
        for lane in lanes:
            lane.committed = lane.acknowledged
        return lanes

    async def _new_producer(self) -> int:
        producer_id, _ = await new_producer(self._at_target)
        return producer_id

    # ---- after a failure

    async def recover(self, lane: Lane) -> None:
        """Prepare the lane to fetch and send again; nothing is in flight."""
        if lane.replaced or (lane.other_id and await self._is_replaced(lane)):
            await self._wait_for_removal(lane)
        elif lane.out_of_range:
            await self._pass_gap(lane)
        elif lane.misfits:
            await self._align(lane, lane.misfits)
        elif lane.target_missing:
            await self._reopen(lane)
        else:
            await self._continue(lane)

    async def _continue(self, lane: Lane) -> None:
        if lane.suspicious or lane.is_compacted:
            await self._compare(lane)
        else:
            lane.rewind(lane.acknowledged)

    async def _compare(self, lane: Lane) -> None:
        """Continue after the lane's last batch in the target."""
        there, is_cut = await self._next_sequence(lane)
        here = lane.acknowledged
        if there is None and is_cut:
            await self._begin_again(lane, "the target's partition is empty")
            return
        ahead = 0 if there is None else (there - here.sequence) & INT32_MAX
        if ahead == 0 and lane.is_compacted:
            await self._resume(lane, await self._under_next_epoch(here))
        elif ahead == 0:
            if lane.suspicious and lane.refused_at == here.sequence:
                await self._renumber(lane, "the target refuses the next number though it is the next")
                return
            if lane.suspicious and lane.failed:
                lane.refused_at = here.sequence
            lane.rewind(here)
        elif ahead < HALF_OF_SEQUENCES and lane.is_compacted:
            await self._align(lane, "its source is compacted")
        elif ahead < HALF_OF_SEQUENCES:
            logger.info("%s: the target has %d records more than the progress says", lane, ahead)
            lane.rewind(here)
            lane.skip_to = there
        else:
            lost = (here.sequence - (there or 0)) & INT32_MAX
            logger.error(
                "%s: the target lost %d records that it had acknowledged: sending them again", lane, lost
            )
            await self._resume(lane, replace(here, offset=here.offset - lost, sequence=there or 0))

    async def _align(self, lane: Lane, why: str) -> None:
        """Continue behind the lane's last record in the target, found among the source's records.

        A request of an ended worker may still arrive with old numbers. Under a new epoch, these cannot be taken for
        the numbers of other records.
        """
        here = lane.acknowledged
        sent = await sent_since(self._at_target, lane)
        if sent is None:
            await self._renumber(lane, f"{why}, and the target has too many records to compare them")
            return
        offset = await unsent_from(self._at_source, lane, sent)
        if offset is None:
            await self._pass_gap(lane)
            return
        logger.info(
            "%s: %s: the target has %d records more than the progress says: continuing from offset %d",
            *(lane, why, sent.count, offset),
        )
        self._counters.repeated_records += sent.count
        behind = replace(here, offset=offset, target_offset=sent.target_offset)
        await self._resume(lane, await self._under_next_epoch(behind))

    async def _next_sequence(self, lane: Lane) -> tuple[int | None, bool]:
        """The number after the lane's last batch in the target; None if the target has none after the progress.

        The flag is True if the target's log ends before the progress's offset; then the lane reads it from its start.
        """
        progress, found, is_cut = lane.acknowledged, None, False
        offset = progress.target_offset
        while True:
            answer = await read(self._at_target, lane.target, offset, SCAN_BYTES)
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                start = await offset_at(self._at_target, lane.target, EARLIEST)
                is_cut = is_cut or start < offset
                offset = start
                continue
            before = offset
            for header in headers_in(answer):
                if (header.producer_id, header.producer_epoch) == (
                    progress.producer_id,
                    progress.producer_epoch,
                ):
                    found = advance_sequence(header.last_sequence, 1)
                offset = header.next_offset
            if offset == before or offset >= answer.high_watermark:
                return found, is_cut

    async def _reopen(self, lane: Lane) -> None:
        """The target's topic is missing. If it was deleted, its progress is gone, too, and the lane starts again."""
        if await self._store.read([lane.target]):
            await self._continue(lane)
        else:
            await self._begin_again(lane, "the target's topic was deleted")

    async def _wait_for_removal(self, lane: Lane) -> None:
        """Wait until the old topic's copy is deleted: a new topic's records must never follow the old one's.

        The target deletes the progress with the copy.
        """
        lane.error = (
            f"{lane}: topic {lane.topic} was deleted and created again in the source: its records are not appended to"
            f" those of the old topic: delete topic {lane.target_topic} in the target to mirror the new one, or"
            f" exclude {lane.topic}"
        )
        logger.error("%s", lane.error)
        while True:
            if not await self._store.read([lane.target]):
                break
            await asyncio.sleep(REMOVAL_LOOK_S)
        await self._begin_again(lane, "the copy of the old topic was deleted")
        lane.error = ""

    async def _is_replaced(self, lane: Lane) -> bool:
        """Whether the source's topic has another id than the progress; notes the new id."""
        cluster = await self._at_source.metadata([lane.topic])
        now = next((id_of(topic) for topic in cluster.topics if not topic.error_code), "")
        if is_same(now, lane.acknowledged.topic_id):
            return False
        lane.acknowledged = replace(lane.acknowledged, topic_id=now, offset=0)
        lane.replaced = True
        return True

    async def _begin_again(self, lane: Lane, why: str) -> None:
        start = await offset_at(self._at_source, lane.source, EARLIEST)
        end = await offset_at(self._at_target, lane.target, LATEST)
        logger.error("%s: %s: mirroring it from its start", lane, why)
        again = replace(
            lane.acknowledged,
            offset=start,
            producer_id=await self._new_producer(),
            producer_epoch=0,
            sequence=0,
            target_offset=end,
            first=start,
        )
        await self._resume(lane, again)

    async def _renumber(self, lane: Lane, why: str) -> None:
        """Continue under the next epoch, from number 0: records without a response may be duplicated."""
        progress = lane.acknowledged
        logger.error("%s: %s: continuing from offset %d under a new epoch", lane, why, progress.offset)
        self._counters.renumbered_lanes += 1
        await self._resume(lane, await self._under_next_epoch(progress))

    async def _under_next_epoch(self, progress: Progress) -> Progress:
        producer_id, epoch = progress.producer_id, progress.producer_epoch + 1
        if epoch > LAST_EPOCH:
            producer_id, epoch = await self._new_producer(), 0
        return replace(
            progress, producer_id=producer_id, producer_epoch=epoch, sequence=0, first=progress.offset
        )

    async def _pass_gap(self, lane: Lane) -> None:
        """The source has deleted the next records: continue at its start, or stop; log which are missing."""
        start = await offset_at(self._at_source, lane.source, EARLIEST)
        end = await offset_at(self._at_source, lane.source, LATEST)
        if await self._is_replaced(lane):  # requested after the offsets, which are then the old topic's
            await self._wait_for_removal(lane)
            return
        there, _ = await self._next_sequence(lane)
        here = lane.acknowledged
        ahead = 0 if there is None else (there - here.sequence) & INT32_MAX
        if 0 < ahead < HALF_OF_SEQUENCES:
            here = replace(here, offset=here.offset + ahead, sequence=there or 0)
        if here.offset > end:
            logger.error(
                "%s: the source ends at %d, before %d: mirroring it from its start", lane, end, here.offset
            )
            here = replace(here, offset=start)
        elif here.offset < start:
            gap = Gap(here.offset, start, _now_ms())
            lost = f"{lane}: the source deleted offsets {gap.offset} to {start - 1} before they were mirrored"
            if self._on_gap is OnGap.STOP:
                lane.stopped_at = gap
                lane.error = (
                    f"{lost}: mirroring of this partition stopped: set onGap to SkipToEarliest to continue"
                )
                logger.error("%s", lane.error)
                return
            self._counters.missing_records += start - here.offset
            logger.error("%s", lost)
            here = replace(here, offset=start, gap=gap)
        await self._resume(lane, here)

    async def _resume(self, lane: Lane, progress: Progress) -> None:
        await self._commit({lane.target: progress})
        lane.committed = progress
        lane.refused_at = None
        lane.rewind(progress)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await the calls, a few at a time."""
    limit = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(call: Awaitable[T]) -> T:
        async with limit:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))
