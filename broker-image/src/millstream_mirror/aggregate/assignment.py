"""Mode Aggregate: opens the tasks of assigned partitions, at their progress or as new ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from millstream_kafka.client import ClusterClient
from millstream_kafka.topic_partition import TopicPartition

from ..kafka import topics
from ..kafka.log_reader import EARLIEST, LATEST, offset_at
from ..kafka.producer_ids import new_producer
from ..kafka.progress import Progress, ProgressStore
from ..kafka.topics import is_same
from ..membership.member import TaskName
from ..partitions.assignment import at, each
from ..partitions.partition_task import PartitionTask
from ..partitions.waiting import Cause
from .history import History

STALE_MS = 12 * 3600 * 1000
"""The target may forget producers after a day (producer.id.expiration.ms): progress older than this is checked against
the target's batches first."""

logger = logging.getLogger(__name__)

Commit = Callable[[Mapping[TopicPartition, Progress]], Awaitable[None]]


class TaskOpener:
    """Raises BrokerError, ApiError; ValueError for unreadable progress."""

    def __init__(
        self,
        at_source: ClusterClient,
        at_target: ClusterClient,
        store: ProgressStore,
        commit: Commit,
        history: History,
        origins: Callable[[str], tuple[str, ...]],
    ) -> None:
        """``origins`` returns the ids of the clusters from which a topic's records come to the source."""
        self._at_source = at_source
        self._at_target = at_target
        self._store = store
        self._commit = commit
        self._history = history
        self._origins = origins

    async def open(
        self, names: Sequence[TaskName], target_ids: Mapping[str, str]
    ) -> tuple[list[PartitionTask], dict[TaskName, Cause]]:
        """Open tasks at their progress, or, without any, at the start of the source's partition.

        ``target_ids`` has the ids of the target's topics."""
        stored = await self._store.read([(name.target_topic, name.partition) for name in names])
        if left := {
            where: replace(progress, is_deselected=False)
            for where, progress in stored.items()
            if progress.is_deselected
        }:
            await self._commit(left)  # before sending, so that no other mirror takes them now
            stored |= left
        cluster_id = self._at_source.cluster_id or ""
        waiting: dict[TaskName, Cause] = {}
        tasks: dict[TaskName, PartitionTask] = {}
        new = []
        for name in names:
            progress = stored.get((name.target_topic, name.partition))
            target_id = target_ids.get(name.target_topic, "")
            if progress is not None and not is_same(progress.target_id, target_id):
                logger.error(
                    "%s-%d: topic %s was deleted and created again in the target: mirroring it from its start",
                    *(name.topic, name.partition, name.target_topic),
                )
                progress = None
            if progress is None:
                new.append(name)
            elif is_same(progress.topic_id, name.topic_id) and is_same(progress.cluster_id, cluster_id):
                task = PartitionTask(
                    name.topic,
                    name.partition,
                    name.target_topic,
                    replace(progress, target_id=target_id or progress.target_id),
                    committed=progress,
                )
                is_stale = _now_ms() - progress.caught_up_ms > STALE_MS
                task.find(compare_source=True, compare_target=is_stale)
                tasks[name] = task
            else:
                of_new = replace(progress, offset=0, topic_id=name.topic_id, cluster_id=cluster_id)
                task = PartitionTask(name.topic, name.partition, name.target_topic, of_new, committed=of_new)
                task.find(replaced=True)
                task.fail("", side="")
                tasks[name] = task
        tasks |= await self._begin(new, cluster_id, waiting)
        compacted = await topics.compacted(self._at_source, {task.topic for task in tasks.values()})

        async def compare(name: TaskName) -> PartitionTask:
            task = tasks[name]
            task.is_compacted = task.topic in compacted
            if task.findings.compare_source and task.is_compacted:
                task.find(compare_target=True)
            with at("source"):
                task.observe_end(await offset_at(self._at_source, task.source, LATEST))
            task.end_recovery()
            return task

        return [*(await each(tasks, compare, waiting)).values()], waiting

    async def _begin(
        self, names: Sequence[TaskName], cluster_id: str, waiting: dict[TaskName, Cause]
    ) -> dict[TaskName, PartitionTask]:
        """Open new tasks; their progress is committed before they send anything. Adds the others to ``waiting``."""

        async def begin(name: TaskName) -> PartitionTask:
            compared_at = time.monotonic()
            with at("source"):
                epoch = await self._history.epoch((name.topic, name.partition))
                start = await offset_at(self._at_source, (name.topic, name.partition), EARLIEST)
            with at("target"):
                end = await offset_at(self._at_target, (name.target_topic, name.partition), LATEST)
                producer = (await new_producer(self._at_target))[0]
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
                is_new=True,
            )
            task = PartitionTask(name.topic, name.partition, name.target_topic, progress)
            task.source_epoch, task.compared_at = epoch, compared_at
            return task

        tasks = await each(names, begin, waiting)
        if tasks:
            # Looked up after the ends: progress must not combine a former topic's id with the end of a new one.
            ids, _, _ = await topics.leaders_of(
                self._at_target, {task.target_topic for task in tasks.values()}
            )
            for task in tasks.values():
                task.acknowledged = replace(task.acknowledged, target_id=ids.get(task.target_topic, ""))
            await self._commit({task.target: task.acknowledged for task in tasks.values()})
        for task in tasks.values():
            task.committed = task.acknowledged
        return tasks


def _now_ms() -> int:
    return int(time.time() * 1000)
