"""Opens tasks, and finds the position of one after a failure. See the package's docstring for the reasoning."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from millstream_kafka.batch import INT32_MAX
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..config.document import OnGap
from ..kafka import topics
from ..kafka.batcher import RequestBatcher
from ..kafka.log_reader import EARLIEST, LATEST, offset_at, read
from ..kafka.producer_ids import new_producer
from ..kafka.progress import Gap, Progress, ProgressStore
from ..kafka.topics import id_of, is_same
from ..membership.member import TaskName
from ..partitions.assignment import CALLS_AT_ONCE, TRANSIENT, TaskRecovery
from ..partitions.partition_task import DIVERGED, HALF_OF_SEQUENCES, MISMATCH, SOURCE_ENDS, PartitionTask
from ..partitions.stats import Counters
from ..partitions.task_state import Skip
from ..partitions.waiting import Cause
from ..records.counting import offset_back
from .assignment import Commit, TaskOpener
from .history import Diverged, History, not_replicated_yet
from .target_state import (
    Producer,
    is_behind,
    next_numbers,
    next_offset_of_rest,
    next_source_offset,
    numbers_there,
    target_state_of,
)

LAST_EPOCH = 32767
RETRY_S, RETRY_MAX_S = 2.0, 30.0
"""How often a task that waits checks whether the target's topic is deleted, or the source has its records again."""
UNREPLICATED_S = 60.0
"""How long to wait for records that the target's leader has and does not return: followers leave its ISR before."""

logger = logging.getLogger(__name__)


class AggregateRecovery(TaskRecovery):
    """Opens and recovers the tasks of one source. Raises BrokerError, ApiError; ValueError for unreadable progress."""

    def __init__(
        self,
        at_source: ClusterClient,
        at_target: ClusterClient,
        comparing: ClusterClient,
        store: ProgressStore,
        commit: Commit,
        counters: Counters,
        on_gap: OnGap = OnGap.SKIP_TO_EARLIEST,
        origins: Callable[[str], tuple[str, ...]] = lambda topic: (),
    ) -> None:
        """``origins`` returns the ids of the clusters from which a topic's records come to the source.

        ``comparing`` is the source, too; its connections carry whole batches.
        """
        super().__init__(at_source, at_target)
        self._on_gap = on_gap
        self._store = store
        self._commit = commit
        self._counters = counters
        self._comparing = comparing
        self._history = History(comparing)
        self._opener = TaskOpener(at_source, at_target, store, commit, self._history, origins)
        self._next_numbers: dict[int, RequestBatcher[Producer, int | None]] = {}
        """By broker of the target, so that one which does not respond holds up no task of the others."""
        self._reads = asyncio.Semaphore(CALLS_AT_ONCE)
        """Tasks that read the target's records, or compare them."""

    async def _open(self, names: Sequence[TaskName]) -> tuple[list[PartitionTask], dict[TaskName, Cause]]:
        return await self._opener.open(names, self._target_ids)

    async def _new_producer(self) -> int:
        producer_id, _ = await new_producer(self._at_target)
        return producer_id

    # ---- after a failure

    async def recover(self, task: PartitionTask) -> None:
        """Prepare the task to fetch and send again; nothing is in flight.

        Waits while the source lacks records that were mirrored, until it has them again, or the target deleted the
        progress with the topic.
        """
        pause = RETRY_S
        while True:
            try:
                if task.reason == DIVERGED and not await self._store.read([task.target]):
                    await self._begin_again(task, "its progress was deleted")
                else:
                    await self._recover(task)
                break
            except Diverged as diverged:
                task.find(compare_source=True, compare_target=True)
                task.refused_at = None
                error = _diverged(task, diverged)
                if task.error != error:
                    logger.error("%s", error)
                task.error, task.side, task.reason = error, "source", DIVERGED
            except TRANSIENT:
                if task.reason != DIVERGED:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_MAX_S)
        if task.reason == DIVERGED:
            task.error = task.reason = ""

    async def _recover(self, task: PartitionTask) -> None:
        """Raises Diverged."""
        is_other = bool(task.findings.other_id)
        if task.findings.compare_source and not task.findings.replaced:
            is_other = not await self._history.check(task)
            if task.reason == DIVERGED and not (task.findings.misfit or task.findings.out_of_range):
                task.reason = ""  # the source has its records again; other errors count from here
        if task.findings.replaced or (is_other and await self._is_replaced(task)):
            await self._wait_for_removal(task)
        elif is_other and task.findings.compare_source:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {task.topic} in the source")
        elif task.findings.out_of_range:
            await self._pass_gap(task)
        elif task.findings.misfit:
            await self._align(task, task.findings.misfit)
        elif task.findings.target_missing:
            await self._reopen(task)
        else:
            await self._continue(task)

    async def _continue(self, task: PartitionTask) -> None:
        if (
            task.findings.compare_target
            or (task.has_failed and task.is_compacted)
            or not await self._is_settled(task)
        ):
            await self._compare(task)
        else:
            task.rewind(task.acknowledged)

    async def _is_settled(self, task: PartitionTask) -> bool:
        """Whether the target has no record of the task that its progress does not count.

        If the source has lost records since, the number of such a record may stand for another one now.
        """
        if not (task.has_failed or task.probing):
            return True
        following, here = await self._following(task), task.acknowledged
        return following == here.sequence or (following == -1 and not here.sequence)

    async def _following(self, task: PartitionTask) -> int | None:
        """The number after the last one that the target's leader has, also of records that are not replicated yet.

        -1 if it has none; None if it cannot tell.
        """
        leaders, absent, problem = await topics.leading(self._at_target, {task.target})
        if task.target not in leaders:
            task.find(target_missing=task.target in absent)
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{task}: {problem or 'no leader in the target'}")
        node, here = leaders[task.target], task.acknowledged
        if node not in self._next_numbers:
            self._next_numbers[node] = RequestBatcher(partial(next_numbers, self._at_target, node))
        producer = Producer(task.target, here.producer_id, here.producer_epoch)
        return await self._next_numbers[node].get(producer)

    async def _compare(self, task: PartitionTask) -> None:
        """Continue after the task's last batch in the target."""
        following = await self._following(task)
        async with self._reads:
            there, is_shorter, last, end = await numbers_there(self._at_target, task)
        here = task.acknowledged
        expected = there if there is not None else -1 if is_shorter else here.sequence
        if following not in (None, -1, expected):
            await self._await_replication(task, end)
        if is_shorter or there is None:  # in the latter case the next comparison need not read all this again
            here = replace(here, target_offset=end)
        if there is None and is_behind(following, here.sequence):  # others have written to the topic since
            there = following
        if there is None and is_shorter:
            await self._begin_again(task, "the target's partition has none of its records")
            return
        ahead = 0 if there is None else (there - here.sequence) & INT32_MAX
        if ahead == 0 and task.is_compacted:
            await self._resume(task, await self._under_next_epoch(here))
        elif ahead == 0:
            if task.findings.compare_target and task.refused_at == here.sequence:
                await self._renumber(task, "the target refuses the next number though it is the next")
                return
            if task.findings.compare_target and task.has_failed:
                task.refused_at = here.sequence
            task.rewind(here)
        elif ahead < HALF_OF_SEQUENCES and task.is_compacted:
            await self._align(task, "its source is compacted")
        elif ahead < HALF_OF_SEQUENCES:
            logger.info("%s: the target has %d records more than the progress counts", task, ahead)
            task.rewind(here)
            task.skip = Skip(there or 0, end, last)
        else:
            lost = (here.sequence - (there or 0)) & INT32_MAX
            logger.error(
                "%s: the target lost %d records that it had acknowledged: sending them again", task, lost
            )
            async with self._reads:
                offset = await offset_back(
                    *(self._comparing, task.source, here.offset, lost), is_compacted=task.is_compacted
                )
            again = replace(here, offset=offset, sequence=there or 0)
            await self._resume(task, await self._under_next_epoch(again) if task.is_compacted else again)

    async def _await_replication(self, task: PartitionTask, end: int) -> None:
        """Raise an ApiError while the target may have records that it does not return yet; but not for ever.

        They may also be compacted, or deleted by retention: then the leader still knows their numbers.
        """
        answer = await read(self._at_target, task.target, end + 1, 1)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return  # its log ends there
        task.unreplicated_since = task.unreplicated_since or time.monotonic()
        if time.monotonic() < task.unreplicated_since + UNREPLICATED_S:
            raise not_replicated_yet("target", task.target, end)

    async def _align(self, task: PartitionTask, why: str) -> None:
        """Continue behind the task's last record in the target, found among the source's records.

        A request of an ended worker may still arrive with old numbers. Under a new epoch, these cannot be taken for
        the numbers of other records.
        """
        here = task.acknowledged
        async with self._reads:
            in_target = await target_state_of(self._at_target, task)
        if in_target is None and why in (MISMATCH, SOURCE_ENDS) and not task.is_compacted:
            if why == SOURCE_ENDS and not await self._history.ends_before(task.source, task.position + 1):
                task.find(misfit="", compare_target=True)  # the next comparison counts again
                raise not_replicated_yet("source", task.source, task.position)
            raise Diverged(f"{why}, and there are too many records to compare them")
        if in_target is None:
            await self._renumber(task, f"{why}, and the target has too many records to compare them")
            return
        async with self._reads:
            offset = await next_source_offset(self._comparing, self._history, task, in_target)
        if offset is None:
            await self._pass_gap(task)
            return
        logger.info(
            "%s: %s: the target has %d records more than the progress counts: continuing from offset %d",
            *(task, why, in_target.count, offset),
        )
        self._counters.repeated_records += in_target.count
        behind = replace(here, offset=offset, target_offset=in_target.target_offset)
        await self._resume(task, await self._under_next_epoch(behind))

    async def _reopen(self, task: PartitionTask) -> None:
        """The target's topic is missing, or a new one: then the task starts again. Its progress may be gone, too."""
        async with self._reads:
            is_new = not is_same(await self._target_id(task), task.acknowledged.target_id)
            is_known = not is_new and bool(await self._store.read([task.target]))
        if is_known:
            await self._compare(task)
        else:
            await self._begin_again(task, "the target's topic was deleted")

    async def _wait_for_removal(self, task: PartitionTask) -> None:
        """Wait until the old topic's copy is deleted: a new topic's records must never follow the old one's.

        The target deletes the progress with the copy.
        """
        task.error = (
            f"{task}: topic {task.topic} was deleted and created again in the source: its records are not appended to"
            f" those of the old topic: delete topic {task.target_topic} in the target to mirror the new one, or"
            f" exclude {task.topic}"
        )
        task.reason = ""
        logger.error("%s", task.error)
        while True:
            if not await self._store.read([task.target]):
                break
            await asyncio.sleep(RETRY_S)
        await self._begin_again(task, "the copy of the old topic was deleted")
        task.error = ""

    async def _is_replaced(self, task: PartitionTask) -> bool:
        """Whether the source's topic has another id than the progress; notes the new id."""
        cluster = await self._at_source.metadata([task.topic])
        now = next((id_of(topic) for topic in cluster.topics if not topic.error_code), "")
        if is_same(now, task.acknowledged.topic_id):
            return False
        task.acknowledged = replace(task.acknowledged, topic_id=now, offset=0)
        task.find(replaced=True)
        return True

    async def _target_id(self, task: PartitionTask) -> str:
        """The present id of the target's topic; empty if there is none."""
        ids, _, _ = await topics.leaders_of(self._at_target, {task.target_topic})
        return ids.get(task.target_topic, "")

    async def _begin_again(self, task: PartitionTask, why: str) -> None:
        start = await offset_at(self._at_source, task.source, EARLIEST)
        end = await offset_at(self._at_target, task.target, LATEST)
        target_id = await self._target_id(task)
        logger.error("%s: %s: mirroring it from its start", task, why)
        again = replace(
            task.acknowledged,
            offset=start,
            producer_id=await self._new_producer(),
            producer_epoch=0,
            sequence=0,
            target_offset=end,
            first=start,
            last=None,
            target_id=target_id,
            is_new=True,
            groups=(),
        )
        task.new_until = -1
        await self._resume(task, again)

    async def _renumber(self, task: PartitionTask, why: str) -> None:
        """Continue under the next epoch, from number 0: records without a response may be duplicated."""
        progress = task.acknowledged
        logger.error("%s: %s: continuing from offset %d under a new epoch", task, why, progress.offset)
        self._counters.renumbered_partitions += 1
        await self._resume(task, await self._under_next_epoch(progress))

    async def _under_next_epoch(self, progress: Progress) -> Progress:
        producer_id, epoch = progress.producer_id, progress.producer_epoch + 1
        if epoch > LAST_EPOCH:
            producer_id, epoch = await self._new_producer(), 0
        return replace(
            progress, producer_id=producer_id, producer_epoch=epoch, sequence=0, first=progress.offset
        )

    async def _pass_gap(self, task: PartitionTask) -> None:
        """The source has deleted the next records: continue at its start, or stop; log which are missing."""
        start = await offset_at(self._at_source, task.source, EARLIEST)
        end = await offset_at(self._at_source, task.source, LATEST)
        if await self._is_replaced(task):  # requested after the offsets, which are then the old topic's
            await self._wait_for_removal(task)
            return
        here = await self._behind_target(task, start, end)
        if here.offset > end:
            if await self._history.ends_before(task.source, here.offset):
                raise Diverged(f"the source ends before offset {here.offset}, up to which it was mirrored")
            raise not_replicated_yet("source", task.source, end)
        if here.offset < start:
            gap = Gap(here.offset, start, _now_ms())
            lost = f"{task}: the source deleted offsets {gap.offset} to {start - 1} before they were mirrored"
            if self._on_gap is OnGap.STOP:
                task.stop_at(gap)
                task.reason = ""
                task.error = (
                    f"{lost}: mirroring of this partition stopped: set onGap to SkipToEarliest to continue"
                )
                logger.error("%s", task.error)
                return
            self._counters.missing_records += start - here.offset
            logger.error("%s", lost)
            here = replace(here, offset=start, gap=gap)
        await self._resume(task, here)

    async def _behind_target(self, task: PartitionTask, start: int, end: int) -> Progress:
        """The progress behind what the target has of the task; the source has offsets ``start`` to ``end``.

        The records that are left in the source tell its offset. If none is left, or there are too many to compare, the
        numbers tell it: too early by the holes of the source. Raises Diverged.
        """
        here = task.acknowledged
        async with self._reads:
            there = (await numbers_there(self._at_target, task)).number
        ahead = 0 if there is None else (there - here.sequence) & INT32_MAX
        if not 0 < ahead < HALF_OF_SEQUENCES:
            return here
        offset = None
        if (begin := max(here.offset, start)) <= end:
            async with self._reads:
                in_target = await target_state_of(self._at_target, task)
                if in_target is not None:
                    offset = await next_offset_of_rest(self._comparing, self._history, task, begin, in_target)
                    ahead = in_target.count
        if offset is None:
            offset = here.offset + ahead
        return replace(here, offset=offset, sequence=(here.sequence + ahead) & INT32_MAX)

    async def _resume(self, task: PartitionTask, progress: Progress) -> None:
        await self._commit({task.target: progress})
        task.committed = progress
        task.refused_at = None
        task.rewind(progress)


def _diverged(task: PartitionTask, what: Diverged) -> str:
    return (
        f"{task}: diverged: {what}: the source lost records, or was restored from an older copy. Nothing is mirrored"
        " until the source has these records again: restore a newer copy of it, or delete topic"
        f" {task.target_topic} in the target to mirror the source from its start, which also deletes the records that"
        " only the target still has"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
