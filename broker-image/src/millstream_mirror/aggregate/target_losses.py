"""Notices that the target has lost records, for tasks that have nothing to send.

A target that was restored from an older copy, or elected an unclean leader, refuses a task's next records, or
acknowledges them at a lower offset. Without next records, the task would report that the target has everything.

A fetch at the offset up to which records are acknowledged is out of range if the leader's log ends before. Unlike the
high watermark, which a new leader learns a little later, this is never lower than what was acknowledged.

If others have written so much since that the log is as long again, the numbers tell: the leader knows the number of
each task's last record. A log changes this way only if its broker restarts, or another one leads. So the numbers are
compared once over each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from weakref import WeakKeyDictionary

from millstream_kafka.client import BrokerError, ClusterClient, Connection
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream_kafka.topic_partition import TopicPartition

from ..kafka.log_reader import LATEST, offsets_at
from ..kafka.topics import PARTITIONS_AT_ONCE, in_parts, leading
from ..partitions.partition_task import PartitionTask
from .target_state import Producer, is_behind, next_numbers

Lost = Callable[[Mapping[PartitionTask, int]], None]


class TargetLosses:
    """Checks whether the target has lost records. One broker that does not respond holds up no other."""

    def __init__(self, at_target: ClusterClient, producing: ClusterClient, lost: Lost) -> None:
        """``producing`` knows the leaders that acknowledged records: one that another client takes for the leader may
        have been deposed. ``lost`` gets idle tasks that have lost records, with the end of the target's log of each."""
        self._at_target = at_target
        self._producing = producing
        self._lost = lost
        self._compared: WeakKeyDictionary[PartitionTask, Connection] = WeakKeyDictionary()
        """The connection over which the numbers of a task were last compared."""

    async def check(self, tasks: Collection[PartitionTask]) -> None:
        idle = {task.target: task for task in tasks if task.is_idle}
        leaders = (await leading(self._at_target, idle.keys())).leaders
        leaders |= self._producing.known_leaders(idle.keys())
        by_node: dict[int, dict[TopicPartition, PartitionTask]] = {}
        for where, node in leaders.items():
            by_node.setdefault(node, {})[where] = idle[where]
        await asyncio.gather(*(self._check_at(node, of_node) for node, of_node in by_node.items()))

    async def _check_at(self, node: int, tasks: Mapping[TopicPartition, PartitionTask]) -> None:
        with contextlib.suppress(BrokerError, ApiError):
            for some in in_parts(tasks, lambda _: 1, PARTITIONS_AT_ONCE):
                requested = {where: tasks[where].acknowledged for where in some if tasks[where].is_idle}
                out = await self._out_of_range(
                    node, {where: requested[where].target_offset for where in requested}
                )
                if not (out := out & requested.keys()):
                    continue
                # It may also have deleted older records: then it begins, and ends, after this offset.
                ends = await offsets_at(self._at_target, node, out, LATEST)
                self._lost(
                    {
                        tasks[where]: end.offset
                        for where, end in ends.items()
                        if where in out and not end.error_code and end.offset < requested[where].target_offset
                        if tasks[where].is_idle and tasks[where].acknowledged is requested[where]
                    }
                )
            await self._compare_numbers(node, tasks.values())
            return
        self._forget_leaders()

    async def _compare_numbers(self, node: int, tasks: Collection[PartitionTask]) -> None:
        """Raises BrokerError, ApiError."""
        connection = await self._at_target.connection(node)
        requested = {
            Producer(task.target, here.producer_id, here.producer_epoch): (task, here)
            for task in tasks
            if task.is_idle and self._compared.get(task) is not connection
            if (here := task.acknowledged).sequence
        }
        if not requested:
            return
        behind = {}
        for producer, number in (await next_numbers(self._at_target, node, requested)).items():
            task, here = requested[producer]
            self._compared[task] = connection
            if is_behind(number, here.sequence):
                behind[producer.target] = task, here
        if not behind:
            return
        ends = await offsets_at(self._at_target, node, behind, LATEST)
        self._lost(
            {
                task: ends[where].offset
                for where, (task, here) in behind.items()
                if where in ends and not ends[where].error_code
                if task.is_idle and task.acknowledged is here
            }
        )

    async def _out_of_range(self, node: int, offsets: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """The partitions whose logs do not reach these offsets, or begin after them. Raises BrokerError, ApiError."""
        topics: dict[str, FetchTopic] = {}
        for (topic, partition), offset in offsets.items():
            requested = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1)
            topics.setdefault(topic, FetchTopic(topic, partitions=[])).partitions.append(requested)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=list(topics.values()))
        response = await self._at_target.call_node(node, fetch.BY_NAME, request)
        found, has_moved = set(), False
        for of_topic in response.responses:
            for answer in of_topic.partitions:
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    found.add((of_topic.topic, answer.partition_index))
                has_moved |= answer.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
        if has_moved:  # the next check goes to the new leaders
            self._forget_leaders()
        return found

    def _forget_leaders(self) -> None:
        for cluster in (self._at_target, self._producing):
            cluster.forget_leaders()
