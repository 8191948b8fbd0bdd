"""Identity mode: finds the positions of tasks from both logs, and stops tasks that must not continue.

A task continues at the end of the target's log. Before that, five look-ups follow, for many tasks at once:

    the target's log     MirrorAppend without batches: its end, and the leader epoch of its last batch
    the source's topic   its id: another id means that the topic was deleted and created again
    the epoch there      OffsetForLeaderEpoch: the source must still have that epoch, at least up to that end.
                         Otherwise the logs have diverged: the source was restored from an older copy, or elected a
                         leader that lacked records
    the batch there      the source's batch at the offset of the target's last one: after a restore, epochs may be
                         reused
    the source's log     its start: if it is beyond the target's end, records are missing (onGap)

All these requests go to one leader of the source, under its epoch, and the task fetches only under this epoch: once
another broker leads, the source refuses (KIP-320), and the task compares the logs again.

A task that must not continue reports the reason and retries every few seconds. It changes nothing in the target.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from millstream_kafka.batch import HEADER_SIZE, read_header
from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.mirror_append import (
    MirrorPartitionResponse,
)
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..aggregate.history import not_replicated_yet
from ..config.document import OnGap
from ..kafka.log_reader import EARLIEST, LATEST, headers_in, may_be_compacted, read
from ..kafka.progress import Gap, Progress, ProgressStore, target_number
from ..kafka.topics import leaders_of
from ..membership.member import TaskName
from ..partitions.assignment import Leaders, TaskRecovery
from ..partitions.partition_task import DIVERGED, PartitionTask
from ..partitions.stats import Counters
from ..partitions.waiting import Cause, no_leader
from .flow import ReplicaTask
from .log_queries import LogQueries, MustWait, Trouble

RETRY_S = 2.0
FETCHES_AT_ONCE = 32

logger = logging.getLogger(__name__)


class IdentityRecovery(TaskRecovery):
    """Opens and recovers the tasks of one source."""

    def __init__(
        self,
        at_source: ClusterClient,
        at_target: ClusterClient,
        store: ProgressStore,
        counters: Counters,
        on_gap: OnGap,
        origins: Callable[[str], tuple[str, ...]],
    ) -> None:
        super().__init__(at_source, at_target)
        self._store = store
        self._counters = counters
        self._on_gap = on_gap
        self._origins = origins
        self._queries = LogQueries(at_source, at_target)
        self._waiting: dict[ReplicaTask, asyncio.Future[Trouble | None]] = {}
        self._comparing_all: asyncio.Task[None] | None = None
        self._comparisons = supervision.Tasks()

    async def _open(self, names: Sequence[TaskName]) -> tuple[list[PartitionTask], dict[TaskName, Cause]]:
        # Where a task continues, the target's log tells: what anybody else has committed there is of no importance.
        stored = await self._store.read(
            [(name.target_topic, name.partition) for name in names], skip_unreadable=True
        )
        cluster_id = self._at_source.cluster_id or ""
        tasks = []
        for name in names:
            before = stored.get((name.target_topic, name.partition))
            is_same = before is not None and before.topic_id == name.topic_id
            new = Progress(0, 0, 0, 0, 0, "", "", _now_ms(), is_new=True)
            known = before if before is not None and is_same else new
            target = target_number(self._target_ids.get(name.target_topic, ""))
            progress = Progress(
                *(0, target, 0, 0, 0, name.topic_id, cluster_id, known.caught_up_ms, known.gap),
                first=0,
                source_end=known.source_end,
                observed_ms=known.observed_ms,
                is_new=known.is_new or known.producer_id != target,
                groups=known.groups if known.producer_id == target else (),
            )
            task = ReplicaTask(name.topic, name.partition, name.target_topic, progress)
            task.origins = self._origins(name.topic)
            tasks.append(task)
        for task, problem in (await self._compare(tasks)).items():
            reason = ""
            if isinstance(problem, MustWait):
                reason = problem.reason
                logger.error("%s", problem)
            task.fail(str(problem), reason=reason, side=self.side_of(problem))  # its recovery retries
        for task in tasks:
            task.end_recovery()
        return [*tasks], {}

    async def recover(self, task: PartitionTask) -> None:
        """Prepare the task to fetch and send again; nothing is in flight. Raises BrokerError, ApiError."""
        assert isinstance(task, ReplicaTask)
        if task.repeats and not task.findings.compare_source:
            task.rewind(task.acknowledged)
            return
        while (problem := await self._compare_in_batch(task)) is not None:
            if not isinstance(problem, MustWait):
                raise problem
            if task.error != str(problem):
                logger.error("%s", problem)
            task.error, task.reason = str(problem), problem.reason
            if task.gap is not None:
                return
            await asyncio.sleep(RETRY_S)
        task.error = task.reason = ""

    async def _compare_in_batch(self, task: ReplicaTask) -> Trouble | None:
        """Like `_compare`, but one run serves all tasks that arrive while leaders are looked up.

        A task waits for no other leader's response. Raises BrokerError, ApiError.
        """
        waiting = self._waiting[task] = asyncio.get_running_loop().create_future()
        if self._comparing_all is None or self._comparing_all.done():
            self._comparing_all = asyncio.create_task(self._compare_all())
        problem: Trouble | None = await waiting
        return problem

    async def _compare_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                problems, groups, under = await self._by_leaders([*waiting])
            except Exception as error:
                _settle(waiting, [*waiting], error)
                continue
            _settle(waiting, problems, problems)
            for tasks in groups:
                self._comparisons.add(asyncio.create_task(self._compare_group(tasks, under, waiting)))

    async def _compare_group(
        self,
        tasks: Mapping[ReplicaTask, Leaders],
        under: Mapping[TopicPartition, int],
        waiting: Mapping[ReplicaTask, asyncio.Future[Trouble | None]],
    ) -> None:
        try:
            _settle(waiting, tasks, await self._check_at(tasks, under))
        except Exception as error:
            _settle(waiting, tasks, error)
        finally:
            for task in tasks:
                waiting[task].cancel()  # unless it is done

    async def _compare(self, tasks: Sequence[ReplicaTask]) -> dict[ReplicaTask, Trouble]:
        """Make tasks ready to continue; return the problems of the others. Raises BrokerError, ApiError."""
        problems, groups, under = await self._by_leaders(tasks)
        for found in await asyncio.gather(*(self._check_at(some, under) for some in groups)):
            problems |= found
        return problems

    async def _by_leaders(
        self, tasks: Sequence[ReplicaTask]
    ) -> tuple[dict[ReplicaTask, Trouble], list[dict[ReplicaTask, Leaders]], dict[TopicPartition, int]]:
        """The problems of tasks without leaders, the others by their leaders, and the source's leader epochs."""
        problems: dict[ReplicaTask, Trouble] = {}
        groups: dict[Leaders, dict[ReplicaTask, Leaders]] = {}
        for task in tasks:
            task.compared_at = time.monotonic()
        ids, at, under = await leaders_of(self._at_source, {task.topic for task in tasks})
        _, there, _ = await leaders_of(self._at_target, {task.target_topic for task in tasks})
        for task in tasks:
            known = ids.get(task.topic)
            task.find(replaced=known is not None and known != task.acknowledged.topic_id)
            if task.findings.replaced:
                problems[task] = MustWait(replaced(task.topic, task.target_topic))
                continue
            leaders = Leaders(at.get(task.source, -1), there.get(task.target, -1))
            for cause, node in ((no_leader("source"), leaders.source), (no_leader("target"), leaders.target)):
                if node < 0:
                    words = f"{task}: {cause.words}"
                    problems.setdefault(task, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, words))
            if task not in problems:
                groups.setdefault(leaders, {})[task] = leaders
        return problems, list(groups.values()), under

    async def _check_at(
        self, tasks: Mapping[ReplicaTask, Leaders], under: Mapping[TopicPartition, int]
    ) -> dict[ReplicaTask, Trouble]:
        """Like `_compare`, for tasks with the same leaders."""
        problems: dict[ReplicaTask, Trouble] = {}
        there: dict[ReplicaTask, MirrorPartitionResponse] = {}
        answers = await self._queries.target_logs(tasks)
        for task, answer in answers.items():
            if isinstance(answer, MirrorPartitionResponse):
                there[task] = answer
            else:
                problems[task] = answer
        leaders = {task.source: tasks[task].source for task in there}
        epochs = await self._queries.epochs(
            leaders, under, {task.source: end.last_epoch for task, end in there.items()}
        )
        replicated = await self._queries.high_watermarks({task: tasks[task] for task in there})
        starts = await self._queries.offsets(leaders, EARLIEST)
        ends = await self._queries.offsets(leaders, LATEST)
        for task, answer in there.items():
            epoch, start, end = epochs[task.source], starts[task.source], ends[task.source]
            try:
                if isinstance(epoch, Exception):
                    raise epoch
                if isinstance(start, Exception):
                    raise start
                if isinstance(end, Exception):
                    raise end
                self._check_epoch(task, answer, epoch, end)
                _check_replicated(task, answer, replicated[task])
            except (MustWait, ApiError, BrokerError) as error:
                problems[task] = error
        limit = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def compare(task: ReplicaTask) -> None:
            start, end = starts[task.source], ends[task.source]
            assert isinstance(start, int)
            assert isinstance(end, int)
            try:
                async with limit:
                    await self._check_last_batch(task, there[task], under[task.source], start)
                self._continue_at_end(task, there[task], start, end)
                task.source_epoch = under[task.source]
            except (MustWait, ApiError, BrokerError) as error:
                problems[task] = error

        await asyncio.gather(*(compare(task) for task in there if task not in problems))
        return problems

    def _check_epoch(
        self, task: ReplicaTask, there: MirrorPartitionResponse, epoch: tuple[int, int], end: int
    ) -> None:
        """Raise MustWait unless the source has the target's last epoch up to the target's end."""
        ours, last = there.log_end_offset, there.last_epoch
        if last >= 0 and (epoch[0] != last or epoch[1] < ours):
            source = f"has no epoch {last}" if epoch[0] != last else f"ends epoch {last} at offset {epoch[1]}"
            raise _diverged(task, f"ends at offset {ours} with leader epoch {last}, the source {source}")
        if last < 0 and ours > end:
            raise _diverged(task, f"ends at offset {ours}, the source at {end}")

    async def _check_last_batch(
        self, task: ReplicaTask, there: MirrorPartitionResponse, under: int, start: int
    ) -> None:
        """Raise MustWait unless the source has the target's last batch, or has deleted it; its log begins at ``start``.

        ApiError if the source does not return it yet.
        """
        if there.last_header is None or len(there.last_header) < HEADER_SIZE:
            return
        ours = read_header(there.last_header)
        answer = await read(self._at_source, task.source, ours.base_offset, 1, epoch=under)
        if not (found := headers_in(answer)):
            if answer.error_code and ours.base_offset < start:
                return  # the source has deleted it
            raise not_replicated_yet("source", task.source, ours.base_offset)
        theirs = found[0]
        if theirs.base_offset > ours.last_offset or may_be_compacted(ours) or may_be_compacted(theirs):
            return
        if (ours.base_offset, ours.crc) != (theirs.base_offset, theirs.crc):
            raise _diverged(
                task, f"has another batch at offset {ours.base_offset} than the source, in its last epoch"
            )

    def _continue_at_end(
        self, task: ReplicaTask, there: MirrorPartitionResponse, start: int, end: int
    ) -> None:
        """Continue at the target's end. Raises MustWait."""
        ours = there.log_end_offset
        task.target_start, task.source_start = there.log_start_offset, start
        task.observe_end(end)
        progress = replace(task.acknowledged, offset=max(ours, start), target_offset=ours)
        if 0 < ours < start:
            task.acknowledged = replace(task.acknowledged, offset=ours, target_offset=ours)
            progress = replace(progress, gap=self._passed(task, ours, start))
        task.rewind(progress)

    def _passed(self, task: ReplicaTask, ours: int, start: int) -> Gap:
        """The gap to skip. Raises MustWait if a user must decide (onGap: Stop)."""
        known = task.acknowledged.gap
        if known is not None and (known.offset, known.next_offset) == (ours, start):
            return known  # nothing was sent since it was counted
        gap = Gap(ours, start, _now_ms())
        lost = f"{task}: the source deleted offsets {ours} to {start - 1} before they were mirrored"
        if self._on_gap is OnGap.STOP:
            task.stop_at(gap)
            raise MustWait(
                f"{lost}: mirroring of this partition stopped: set onGap to SkipToEarliest to continue"
            )
        self._counters.missing_records += start - ours
        logger.error("%s", lost)
        return gap


def _settle(
    waiting: Mapping[ReplicaTask, asyncio.Future[Trouble | None]],
    tasks: Iterable[ReplicaTask],
    found: Mapping[ReplicaTask, Trouble] | Exception,
) -> None:
    """Hand these tasks their problems, or None, or an error."""
    for task in tasks:
        if (comparison := waiting[task]).done():
            continue
        if isinstance(found, Exception):
            comparison.set_exception(found)
        else:
            comparison.set_result(found.get(task))


def _check_replicated(
    task: ReplicaTask, there: MirrorPartitionResponse, replicated: int | ApiError | BrokerError
) -> None:
    """Raise ApiError while the target may lose the end of its log: positions of groups count all that it has."""
    if isinstance(replicated, Exception):
        raise replicated
    if replicated < there.log_end_offset:
        raise not_replicated_yet("target", task.target, replicated)


def _diverged(task: ReplicaTask, what: str) -> MustWait:
    return MustWait(
        f"{task}: diverged: the target's log {what}: the source lost records, or was restored from an older copy."
        f" Nothing is overwritten: promote topic {task.target_topic} to keep it, or delete it in the target to mirror"
        " the source from its start",
        DIVERGED,
    )


def replaced(topic: str, target_topic: str) -> str:
    return (
        f"topic {topic} was deleted and created again in the source: its records are not appended to those of the old"
        f" topic: delete topic {target_topic} in the target to mirror the new one, promote it to keep it, or exclude"
        f" {topic}"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
