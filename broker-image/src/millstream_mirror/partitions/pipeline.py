"""Moves records: fetches the tasks of one source and sends to the target without waiting for responses.

    supervise   opens tasks, recovers failed ones, runs a pump for each broker of the source
    pump        fetches from one broker for all tasks that it leads, and sends the batches on
    produce     one request to one of the target's brokers, and the effect of its response on each task

The bytes in flight are bounded, per task and in total; no task waits for the responses of another. What goes to the
target depends on the mode: numbered batches (aggregate/flow.py) or unchanged ones (identity/flow.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from millstream_kafka.client import BrokerError, ClusterClient, Connection, RequestTimedOut
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.api import Api, Req, Res
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..kafka.topics import id_of, is_same, leading
from ..membership.member import TaskName
from ..records.fetch_session import FETCH_WAIT_MS, FetchSession, by_id_or_name, partitions_in
from ..records.rewrite import Outgoing
from ..records.window import Window
from ..runtime.wakeup import Wakeup, wait_for
from .assignment import BACKOFF_MAX_S, BACKOFF_S, TRANSIENT, AssignedTasks, TaskRecovery
from .fetch_limit import FetchLimit
from .partition_task import PartitionTask, SentRequest, Written
from .stats import Counters, Reachability
from .task_state import Halted

FETCH_BYTES = 8 * 1024 * 1024
TASK_BYTES = 4 * 1024 * 1024
"""A task with more bytes in flight than this does not fetch."""
IN_FLIGHT_BYTES = 32 * 1024 * 1024
"""With more bytes in flight than this in total, no task of the source fetches; on a slow link, the limit is lower."""
FETCH_TIMEOUT_S = 10.0
FULL_WAIT_S = 0.02
"""How long other tasks wait for a task that has too much in flight."""
REPLICA_S = 300.0
"""How long a task fetches from a follower before it queries its leader again, as in Kafka's consumers."""
IDLE_UPDATE_S = 1.0
"""How often to mark tasks that a fetch session leaves out as still caught up."""
PRODUCE_TIMEOUT_MS = 30_000
DRAIN_S = 3.0

Part = tuple[PartitionTask, SentRequest, "memoryview | bytes"]
Numbered = list[tuple[list[Outgoing], "memoryview | bytes"]]

logger = logging.getLogger(__name__)


class Flow(ABC):
    is_committed = True
    """Whether it fetches only records whose transactions have ended."""

    def __init__(
        self,
        source_name: str,
        fetching: ClusterClient,
        producing: ClusterClient,
        recovery: TaskRecovery,
        reachability: Reachability,
        counters: Counters,
        bytes_per_second: Callable[[int], float] | None = None,
        rack: str = "",
    ) -> None:
        """Only this flow uses ``fetching`` and ``producing``, because a long poll blocks its connection.

        ``bytes_per_second`` returns the limit for a number of tasks; None: no limit. ``rack`` is the worker's, by the
        source's names; if it is empty, the worker fetches only from leaders.
        """
        self.source_name = source_name
        self.tasks: dict[TopicPartition, PartitionTask] = {}
        self.assignment = AssignedTasks(recovery, self._failure)
        self.written: dict[str, Written] = {}
        """By topic of the target, including topics whose tasks went to other workers."""
        self._fetching = fetching
        self._producing = producing
        self._recovery = recovery
        self._reachability = reachability
        self._counters = counters
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if the state of tasks is lost: the worker ends, and another takes over its tasks."""
        self._supervisor: asyncio.Task[None] | None = None
        self._workers: dict[
            Any, asyncio.Task[None]
        ] = {}  # pumps by broker, recoveries by task, the assignment
        self._produces = supervision.Tasks()
        self._bytes_in_flight = 0
        self._from_source, self._to_target = Window(FETCH_BYTES), Window(IN_FLIGHT_BYTES)
        self._limit = FetchLimit(bytes_per_second, counters) if bytes_per_second is not None else None
        self._rack = rack
        self._opened: dict[Connection, float] = {}
        """Connections to the source, and when they were first seen."""
        self._wake = asyncio.Event()
        """Wakes the supervisor: a task failed, or needs its leader."""
        self._progress = Wakeup()
        """Wakes the pumps: a response has arrived, or a task is ready."""

    def start(self, names: list[TaskName]) -> None:
        self.tasks = {}
        self.assignment.assigned(names)
        self._supervisor = self._run("tasks", self._supervise(names))

    async def stop(self, *, drain: bool) -> None:
        """Stop fetching and, with ``drain``, wait for pending responses. The tasks stay readable."""
        if self._supervisor is None:
            return
        stopping = [self._supervisor, *self._workers.values()]
        self._supervisor = None
        self.assignment.revoked()
        self._workers.clear()
        await supervision.cancel(stopping)
        if self._produces and drain:
            await asyncio.wait(self._produces, timeout=DRAIN_S)
        await self._produces.cancel()

    # ---- supervision

    async def _supervise(self, names: list[TaskName]) -> None:
        opened = self.assignment.run(names, self._add_tasks, self._connect)
        self._workers["assignment"] = self._run("assigned tasks", opened)
        while True:
            self._wake.clear()
            tasks = list(self.tasks.values())
            self._workers = {key: worker for key, worker in self._workers.items() if not worker.done()}
            for task in tasks:
                if isinstance(task.state, Halted) and not task.in_flight:
                    task.start_recovery()
                    self._workers[task] = self._run("recovery of a task", self._recover(task))
            all_found = await self._locate(
                [
                    task
                    for task in tasks
                    if task.leader < 0 and not (task.findings.replaced or task.findings.other_id)
                ]
            )
            for node in {task.leader for task in tasks if task.leader >= 0} - self._workers.keys():
                self._workers[node] = self._run("fetches", self._pump(node))
            self._progress.wake()
            await wait_for(self._wake, BACKOFF_MAX_S if all_found else BACKOFF_S)

    def _add_tasks(self, tasks: list[PartitionTask]) -> None:
        for task in tasks:
            task.written = self.written.setdefault(task.target_topic, Written())
        self.tasks = {**self.tasks, **{task.source: task for task in tasks}}
        self._wake.set()

    def lost(self, ends: Mapping[PartitionTask, int]) -> None:
        """The target has lost records of these tasks; ``ends`` are those of its logs."""
        for task, end in ends.items():
            if self.tasks.get(task.source) is not task:
                continue
            task.lost(end)
            self._failure(task.error)
            self._wake.set()

    async def _connect(self, node: int) -> None:
        """Connect to a broker before its tasks open: their first comparison then covers it. Raises BrokerError."""
        self._may_use(await self._fetching.connection(node), [])

    async def _locate(self, lost: list[PartitionTask]) -> bool:
        """Find the brokers of the source that lead these tasks; False if one has no leader now.

        A topic may have been deleted and created again since the last fetch of its task.
        """
        if not lost:
            return True
        try:
            cluster = await self._fetching.metadata({task.topic for task in lost})
        except TRANSIENT as error:
            self._reachability.lost(error)
            return False
        leaders = {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in cluster.topics
            for partition in topic.partitions
        }
        ids = {topic.name: id_of(topic) for topic in cluster.topics}
        for task in lost:
            if not is_same(ids.get(task.topic, ""), task.acknowledged.topic_id):
                task.find(other_id=ids[task.topic])
                task.fail(
                    f"{task}: topic {task.topic} has another id in the source than before", side="source"
                )
                self._wake.set()
                continue
            task.leader = leaders.get((task.topic, task.partition), -1)
            task.replica_until = 0.0
        return all(task.leader >= 0 or task.findings.other_id for task in lost)

    async def _recover(self, task: PartitionTask) -> None:
        pause = min(BACKOFF_S * 2 ** min(task.failures, 10), BACKOFF_MAX_S) if task.failures else 0.0
        if task.has_failed or task.error:
            task.failures += 1
        while True:
            await asyncio.sleep(pause)
            try:
                await self._recovery.recover(task)
                if task.gap is None:  # without a leader, a fetch would be in vain
                    await self._target_leader(task)
                if task.replica_until:  # a follower may lack records that the target has, and the task skips
                    task.leader = -1
                break
            except (*TRANSIENT, ValueError) as error:
                task.error, task.reason = str(error), ""
                task.side = self._recovery.side_of(error)
                self._failure(f"{task}: {error}")
                pause = min(max(pause * 2, BACKOFF_S), BACKOFF_MAX_S)
        task.end_recovery()
        self._wake.set()

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return supervision.run(name, work, fatal=self._fatal)

    def _fatal(self, why: str) -> None:
        if not self.failure.done():
            self.failure.set_exception(RuntimeError(f"source {self.source_name}: {why}"))

    def _failure(self, what: str) -> None:
        self._counters.failures += 1
        logger.warning("source %s: %s", self.source_name, what)

    # ---- fetching and numbering

    async def _pump(self, node: int) -> None:
        pause = BACKOFF_S
        session = FetchSession(is_wanted=self._limit is None, is_committed=self.is_committed)
        observed_at = 0.0
        while True:
            tasks, full = await self._tasks_to_fetch(node)
            if self._rack:
                tasks = [task for task in tasks if not self._is_leader_due(task)]
            if not tasks or self._bytes_in_flight > self._to_target.bytes:
                await self._some_progress()
                continue
            allowed = min(self._from_source.bytes, self._to_target.bytes)
            reserved = 0
            if self._limit is not None:
                if not (reserved := self._limit.reserve(len(self.tasks))):
                    await self._limit.wait()
                    continue
                allowed = min(allowed, reserved)
                tasks.sort(key=lambda task: task.turn)
            requested = {task.source: (task.position, task.source_epoch) for task in tasks}
            # A task that skips must not be sent to a follower, which may lack records that the target has.
            rack = "" if not self._rack or any(task.skip is not None for task in tasks) else self._rack
            used = allowed  # if the fetch fails, the broker may have sent this many bytes
            begun = time.monotonic()
            try:
                connection = await self._fetching.connection(node)
                if not self._may_use(connection, tasks):
                    used = 0
                    continue
                few = {task.source: task.fetch_bytes for task in tasks if task.one_by_one}
                topics = {task.topic: task.acknowledged.topic_id for task in tasks}
                api, ids = by_id_or_name(connection.version(fetch.API), topics)
                # Full tasks may fetch again long before the others have news.
                wait_ms = 0 if full else FETCH_WAIT_MS
                request = session.request(requested, allowed, rack, ids, few, wait_ms=wait_ms)
                is_partial = session.is_partial
                response = await self._fetching.call_node(node, api, request, timeout=FETCH_TIMEOUT_S)
                refused = session.answered(response)
                used = (
                    self._limit.take_turns(tasks[0], response, self.tasks) if self._limit is not None else 0
                )
            except BrokerError as error:
                if isinstance(error, RequestTimedOut):
                    self._from_source.timed_out()
                what = f"fetching from broker {node} of {self.source_name}: {error}"
                if any(not task.error for task in tasks):
                    logger.warning("source %s: %s", self.source_name, what)
                self._counters.failures += 1
                self._fetching.forget_leaders()
                await asyncio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)
                for task in tasks:
                    task.leader = -1  # the supervisor looks up its leader, and whether the cluster responds
                    if not task.error:
                        task.error, task.side = f"{task}: {what}", "source"
                self._wake.set()
                return
            finally:
                if self._limit is not None:
                    self._limit.settle(reserved, used)
            self._from_source.answered(time.monotonic() - begun)
            pause = BACKOFF_S
            self._reachability.found()
            if refused:  # the broker has probably dropped the session
                logger.info("source %s: fetching from broker %d: %s", self.source_name, node, refused.name)
                await asyncio.sleep(BACKOFF_S)
                continue
            if is_partial:
                if is_due := begun - observed_at >= IDLE_UPDATE_S:
                    observed_at = begun
                self._handle_unlisted(
                    tasks if is_due else [task for task in tasks if task.has_to_act], response
                )
            await self._forward(response, requested)

    async def _tasks_to_fetch(self, node: int) -> tuple[list[PartitionTask], list[PartitionTask]]:
        """The tasks that this broker leads and that may fetch, and those that have too much in flight.

        Waits a little for these, so that the next fetch is for all, and requests to the target for many.
        """
        until = time.monotonic() + FULL_WAIT_S
        while True:
            here = [task for task in self.tasks.values() if task.leader == node]
            tasks = [task for task in here if task.may_fetch(TASK_BYTES)]
            full = [task for task in here if task.is_full(TASK_BYTES)] if len(tasks) < len(here) else []
            if not full or (left := until - time.monotonic()) <= 0:
                return tasks, full
            await self._progress.wait(left)

    def _handle_unlisted(self, tasks: Sequence[PartitionTask], response: FetchResponse) -> None:
        """Handle tasks that the response leaves out: it confirms that they have no news."""
        there = partitions_in(response)
        for task in tasks:
            if task.source in there or not task.may_fetch(TASK_BYTES):
                continue
            if task.has_to_act:
                data = PartitionData(task.partition, 0, task.high_watermark)
                response.responses.append(FetchableTopicResponse(task.topic, partitions=[data]))
            else:
                task.observe_end(task.high_watermark)

    def _may_use(self, connection: Connection, tasks: Sequence[PartitionTask]) -> bool:
        """Whether to fetch these tasks over a connection.

        After a reconnect the source may have another history: tasks compare before they fetch.
        """
        self._opened = {known: at for known, at in self._opened.items() if not known.is_closed}
        where = connection.host, connection.port
        open_before = (at for known, at in self._opened.items() if (known.host, known.port) == where)
        # One that replaces a connection before its session ends reaches the same process.
        opened = self._opened.setdefault(connection, next(open_before, time.monotonic()))
        outdated = [task for task in tasks if task.compared_at < opened]
        for task in outdated:
            task.compare_again()
        if outdated:
            self._wake.set()
        return not outdated

    async def _some_progress(self) -> None:
        """Wait until a response or a recovery may have made a task ready."""
        await self._progress.wait(BACKOFF_S)

    async def _forward(
        self, response: FetchResponse, requested: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        """Number the fetched batches and send them; other tasks wait for responses.

        ``requested`` has the offset and the leader epoch of each fetch.

        A task's batches stay in order, although this awaits between numbering and sending them. Only the pump that
        fetches a task hands it to another one, or a recovery, which begins with nothing in flight; after that a task
        sends one batch and waits (`PartitionTask.probing`). If the target's leader moves, later batches may reach the
        new leader first. It has that first batch, so it refuses them, as a copy's offset makes it, too.
        """
        targets = {self.tasks[where].target for where in partitions_in(response) if where in self.tasks}
        leaders, absent, problem = await leading(self._producing, targets)
        rounds: list[dict[int, list[Part]]] = []
        for topic in response.responses:
            for data in topic.partitions:
                where = (topic.topic, data.partition_index)
                task = self.tasks.get(where)
                if task is None or where not in requested:
                    continue
                position, epoch = requested[where]
                if task.source_epoch == epoch and not data.error_code and data.high_watermark >= 0:
                    task.observe_end(data.high_watermark)  # in any case: a fetch session reports it once
                if (task.position, task.source_epoch) != (position, epoch):
                    continue
                if not task.may_fetch(TASK_BYTES):
                    continue  # it failed or recovered meanwhile
                if data.preferred_read_replica >= 0:
                    self._move(task, data.preferred_read_replica)
                    continue
                if data.error_code and task.replica_until:
                    self._move_back(task)
                    continue
                if data.error_code:
                    self._fetch_refused(task, ErrorCode.of(data.error_code))
                    continue
                if not (parts := await self._number(task, data)):
                    continue
                node = leaders.get(task.target)
                if node is None:  # waiting for an election would hold up the others: its recovery does
                    task.fail(f"{task}: {problem}")
                    task.find(target_missing=task.target in absent)
                    self._failure(task.error)
                    self._wake.set()
                    continue
                self._add(rounds, task, parts, node)
        for by_node in rounds:
            for node, of_node in by_node.items():
                self._bytes_in_flight += sum(sent.size for _, sent, _ in of_node)
                self._produces.add(self._run("produces", self._produce(node, of_node)))
        if rounds:
            await asyncio.sleep(0)  # lets the requests be written, in this order

    def _is_leader_due(self, task: PartitionTask) -> bool:
        """Whether to query the leader again which replica is the nearest."""
        if not task.replica_until or time.monotonic() < task.replica_until:
            return False
        self._move_back(task)
        return True

    def _move(self, task: PartitionTask, replica: int) -> None:
        """Fetch from this replica for a while: the leader reports that it is nearer (KIP-392)."""
        task.leader, task.replica_until = replica, time.monotonic() + REPLICA_S
        self._wake.set()

    def _move_back(self, task: PartitionTask) -> None:
        """Fetch from the leader, which can diagnose problems better than a follower."""
        task.leader, task.replica_until = -1, 0.0
        self._fetching.forget_leaders(task.topic)
        self._wake.set()

    def _fetch_refused(self, task: PartitionTask, error: ErrorCode) -> None:
        task.compare_again(f"{task}: fetching from {self.source_name}: {error.name}: {error.message}")
        task.find(out_of_range=error is ErrorCode.OFFSET_OUT_OF_RANGE)
        self._fetching.forget_leaders(task.topic)
        if not task.findings.out_of_range:
            task.leader = -1
            self._failure(task.error)
        self._wake.set()

    @abstractmethod
    async def _number(self, task: PartitionTask, data: PartitionData) -> Numbered:
        """The task's next batches, in parts for one request each; none if the task changes while they are prepared."""

    def _add(
        self, rounds: list[dict[int, list[Part]]], task: PartitionTask, parts: Numbered, node: int
    ) -> None:
        while len(rounds) < len(parts):
            rounds.append({})
        for by_node, (batches, data) in zip(rounds, parts, strict=False):
            self._counters.batches += len(batches)
            by_node.setdefault(node, []).append((task, task.send(batches), data))

    async def _target_leader(self, task: PartitionTask) -> int:
        """Raises BrokerError, ApiError; waits for an election."""
        try:
            return await self._producing.leader(*task.target)
        except TRANSIENT as error:
            is_missing = getattr(error, "code", None) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            task.find(target_missing=is_missing)
            raise

    async def _send(self, node: int, api: Api[Req, Res], request: Req) -> Res:
        """Send a request with records. Raises BrokerError, ApiError."""
        begun = time.monotonic()
        try:
            response = await self._producing.call_node(node, api, request)
        except RequestTimedOut:
            self._to_target.timed_out()
            raise
        self._to_target.answered(time.monotonic() - begun)
        return response

    @abstractmethod
    async def _produce(self, node: int, parts: list[Part]) -> None:
        """Send one request, and hand each task its outcome."""

    async def _sending(
        self,
        what: str,
        send: Callable[[], Awaitable[None]],
        parts: list[Part],
        waiting: Mapping[TopicPartition, tuple[PartitionTask, SentRequest]],
    ) -> None:
        """Await one request and release its bytes, whatever its outcome. ``waiting``: tasks without a response."""
        try:
            await send()
            for task, sent in waiting.values():
                task.fail(f"{task}: the target did not answer for it", sent)
        except TRANSIENT as error:
            self._producing.forget_leaders()
            self._failure(f"{what}: {error}")
            for task, sent in waiting.values():
                task.fail(f"{task}: {what}: {error}", sent)
        except asyncio.CancelledError:
            for task, sent in waiting.values():
                task.fail(f"{task}: given up", sent)
            raise
        finally:
            self._bytes_in_flight -= sum(sent.size for _, sent, _ in parts)
            self._progress.wake()
            if any(task.is_stopped for task, _, _ in parts):
                self._wake.set()
