"""Opens tasks so that none waits for another partition's leader.

Partitions without a leader wait. The others open in groups, all at once: one group for each pair of leaders, in source
and target. So a leader that does not respond holds up only its own partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..kafka import topics
from ..membership.member import TaskName
from .partition_task import PartitionTask, Side
from .waiting import POSITION_UNKNOWN, Cause, cause_of, failed, named, no_leader, no_topic, not_reached

BACKOFF_S, BACKOFF_MAX_S = 0.1, 5.0
CALLS_AT_ONCE = 32
TRANSIENT = (BrokerError, ApiError, OSError)
"""Errors to retry."""
Opened = Callable[[list[PartitionTask]], None]
Connect = Callable[[int], Awaitable[None]]


class Leaders(NamedTuple):
    """The brokers that lead a partition."""

    source: int
    target: int


class TaskRecovery(ABC):
    """Finds the positions of the tasks of one source."""

    def __init__(self, at_source: ClusterClient, at_target: ClusterClient) -> None:
        self._at_source = at_source
        self._at_target = at_target
        self._target_ids: dict[str, str] = {}
        """Ids of the target's topics, as looked up before tasks open."""

    async def open(
        self, names: Sequence[TaskName], opened: Opened, connect: Connect
    ) -> dict[TaskName, Cause]:
        """Open tasks, and return why the others cannot be opened yet. Raises BrokerError, ApiError.

        Calls ``opened`` with tasks that are ready to fetch, or failed, as soon as they are; and before that ``connect``
        with the leader in the source, which may raise BrokerError.
        """
        groups, waiting = await self._groups(names)

        async def open_group(leaders: Leaders, of_leaders: list[TaskName]) -> None:
            if (cause := await self._reach(leaders)) is None:
                try:
                    await connect(leaders.source)
                    tasks, refused = await self._open(of_leaders)
                    waiting.update(refused)
                    opened(tasks)
                    return
                except (*TRANSIENT, ValueError) as error:
                    cause = failed(self.side_of(error), f"cannot be opened: {error}")
            waiting.update(dict.fromkeys(of_leaders, cause))

        async with asyncio.TaskGroup() as running:
            for leaders, of_leaders in groups.items():
                running.create_task(open_group(leaders, of_leaders))
        return waiting

    @abstractmethod
    async def _open(self, names: Sequence[TaskName]) -> tuple[list[PartitionTask], dict[TaskName, Cause]]:
        """Open tasks with the same leaders, and return why others have to wait.

        Raises BrokerError, ApiError; ValueError for unreadable progress."""

    @abstractmethod
    async def recover(self, task: PartitionTask) -> None:
        """Prepare a failed task to fetch and send again; nothing is in flight.

        Raises BrokerError, ApiError, ValueError."""

    async def causes(self, names: Sequence[TaskName]) -> dict[TaskName, Cause]:
        """Why these partitions wait, as far as leaders are the cause. Raises BrokerError, ApiError."""
        groups, waiting = await self._groups(names)

        async def reach(leaders: Leaders, of_leaders: list[TaskName]) -> None:
            if (cause := await self._reach(leaders)) is not None:
                waiting.update(dict.fromkeys(of_leaders, cause))

        async with asyncio.TaskGroup() as running:
            for leaders, of_leaders in groups.items():
                running.create_task(reach(leaders, of_leaders))
        return waiting

    def side_of(self, error: Exception) -> Side:
        """The side of the broker that an error names; empty if neither or both have it."""
        if not isinstance(error, BrokerError):
            return ""
        where = error.host, error.port
        is_here, is_there = (
            where in {*cluster.bootstrap, *cluster.brokers.values()}
            for cluster in (self._at_source, self._at_target)
        )
        return "" if is_here == is_there else "source" if is_here else "target"

    async def _groups(
        self, names: Sequence[TaskName]
    ) -> tuple[dict[Leaders, list[TaskName]], dict[TaskName, Cause]]:
        """Partitions by their leaders, and why the others have to wait. Raises BrokerError, ApiError."""
        (ids, here, _), (target_ids, there, _) = await asyncio.gather(
            topics.leaders_of(self._at_source, {name.topic for name in names}),
            topics.leaders_of(self._at_target, {name.target_topic for name in names}),
        )
        self._target_ids |= target_ids
        groups: dict[Leaders, list[TaskName]] = {}
        waiting: dict[TaskName, Cause] = {}
        for name in names:
            source, target = (name.topic, name.partition), (name.target_topic, name.partition)
            if name.topic not in ids:
                waiting[name] = no_topic("source", name.topic)
            elif source not in here:
                waiting[name] = no_leader("source")
            elif name.target_topic not in target_ids:
                waiting[name] = no_topic("target", name.target_topic)
            elif target not in there:
                waiting[name] = no_leader("target")
            else:
                groups.setdefault(Leaders(here[source], there[target]), []).append(name)
        return groups, waiting

    async def _reach(self, leaders: Leaders) -> Cause | None:
        """Connect to both leaders, or return why not."""
        sides: tuple[tuple[Side, ClusterClient, int], ...] = (
            ("source", self._at_source, leaders.source),
            ("target", self._at_target, leaders.target),
        )
        for side, cluster, node in sides:
            try:
                await cluster.connection(node)
            except TRANSIENT as error:
                return not_reached(side, node, error)
        return None


class AssignedTasks:
    """The tasks assigned to a worker, of one source: opened until all are open."""

    def __init__(self, recovery: TaskRecovery, failure: Callable[[str], None]) -> None:
        """``failure`` logs and counts why tasks cannot be opened."""
        self._recovery = recovery
        self._failure = failure
        self._names: dict[TopicPartition, TaskName] | None = None
        """The assigned partitions; None while this worker has no assignment."""
        self._waiting: dict[TaskName, Cause] = {}

    def assigned(self, names: Sequence[TaskName]) -> None:
        self._names = {(name.topic, name.partition): name for name in names}
        self._waiting = dict.fromkeys(names, POSITION_UNKNOWN)

    def revoked(self) -> None:
        self._names, self._waiting = None, {}

    @property
    def error(self) -> str:
        """Why tasks cannot be opened yet; empty if they are open, or are being opened for the first time."""
        found = {name: cause for name, cause in self._waiting.items() if cause is not POSITION_UNKNOWN}
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return next((f"{named([name])}: {cause.words}{more}" for name, cause in found.items()), "")

    def waiting(self, tasks: Mapping[TopicPartition, PartitionTask]) -> dict[TaskName, Cause] | None:
        """The partitions that are not mirrored at the moment; None while this worker has no assignment.

        ``tasks`` are the open ones.
        """
        if self._names is None:
            return None
        causes = {self._names[where]: cause_of(task) for where, task in tasks.items()}
        return self._waiting | {name: cause for name, cause in causes.items() if cause is not None}

    async def run(self, names: Sequence[TaskName], opened: Opened, connect: Connect) -> None:
        """Open the tasks; those that have to wait hold up no other. ``opened`` and ``connect`` as in `TaskRecovery`."""

        def noted(tasks: list[PartitionTask]) -> None:
            for task in tasks:
                if self._names is not None:
                    self._waiting.pop(self._names[task.source], None)
            opened(tasks)

        pause, reported = BACKOFF_S, ""
        while names:
            try:
                waiting = await self._recovery.open(names, noted, connect)
            except TRANSIENT as error:
                cause = failed(self._recovery.side_of(error), f"cannot be opened: {error}")
                waiting = dict.fromkeys(names, cause)
            self._waiting = waiting
            if (error_now := self.error) and error_now != reported:
                self._failure(error_now)
            reported = error_now
            if names := list(waiting):
                await asyncio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)


class NotOpened(Exception):
    """A cluster refuses a request for one partition."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.words)
        self.cause = cause


@contextlib.contextmanager
def at(side: Side) -> Iterator[None]:
    """Raise NotOpened for an ApiError of this cluster."""
    try:
        yield
    except ApiError as error:
        raise NotOpened(failed(side, f"cannot be opened: {error}")) from error


async def each(
    names: Iterable[TaskName],
    work: Callable[[TaskName], Awaitable[PartitionTask]],
    waiting: dict[TaskName, Cause],
) -> dict[TaskName, PartitionTask]:
    """Open a task for each, a few at a time; adds those that are refused to ``waiting``. Raises BrokerError.

    After the first BrokerError, the others are given up: they have the same leaders.
    """
    limit = asyncio.Semaphore(CALLS_AT_ONCE)
    done: dict[TaskName, PartitionTask] = {}

    async def open_task(name: TaskName) -> None:
        async with limit:
            try:
                done[name] = await work(name)
            except NotOpened as refused:
                waiting[name] = refused.cause
            except ApiError as error:
                waiting[name] = failed("", f"cannot be opened: {error}")

    calls = [asyncio.create_task(open_task(name)) for name in names]
    try:
        await asyncio.gather(*calls)
    finally:
        await supervision.cancel(calls)
    return done
