"""One source: the topics to mirror, this worker's partitions of them, and their progress.

    refresh   finds the source's topics, creates them in the target, and offers them to the group's leader
    member    shares the partitions with the other workers; tasks start when assigned, and stop before they are revoked
    commit    stores the progress of all tasks in one request
    groups    copies the positions of consumer groups
    watch     notes partitions that wait, and finds out why

An unreachable source does not disturb the others; it is retried until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.metadata import MetadataResponse
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from .aggregate.mode import AggregateMode
from .aggregate.target_losses import TargetLosses
from .config.config import MirrorConfig, Source
from .config.document import Mode, Naming
from .group_sync.groups import SYNC_S, GroupSync
from .identity.mode import IdentityMode
from .kafka.clients import connect
from .kafka.progress import Progress, ProgressStore
from .kafka.topics import MirroredTopic, select
from .membership.member import GroupMembership, TaskName
from .membership.peer_liveness import WorkerEndpoint
from .partitions.assignment import TRANSIENT
from .partitions.mode import Context, MirrorMode
from .partitions.pipeline import DRAIN_S
from .partitions.stats import Counters, Problem, Rate, Reachability, SourceStatus, by_topic, gaps_of
from .partitions.waiting import LONG_S, PARTITION_WAITING, Cause, Waits, messages, no_refresh
from .selection.allowed_topics import AllowedTopics
from .selection.deselected import DeselectedTopics

REFRESH_S = 2.0
NEW_REFRESH_S, NEW_S = 0.25, 10.0
"""Refreshes are more frequent for a while after a new topic: a loop of mirrors that start together soon opens."""
COMMIT_S = 0.25
WATCH_S = 2.0
LOSSES_CHECK_S = 10.0
UNMATCHED = 100  # patterns in a status
MODES: Mapping[Mode, Callable[[Context], MirrorMode]] = {
    Mode.AGGREGATE: AggregateMode,
    Mode.IDENTITY: IdentityMode,
}

logger = logging.getLogger(__name__)


class MirrorRefused(Exception):
    """The configured mirror is not allowed; the message is one line for users."""


class SourceMirror:
    def __init__(self, config: MirrorConfig, source: Source, endpoint: WorkerEndpoint) -> None:
        self.config = config
        self.source = source
        self._counters = Counters()
        self._reachability = Reachability(f"source {source.name}", source.bootstrap)
        self._target_reachability = Reachability("target", config.target)
        self._target_error = ""
        self._refreshed = time.monotonic()
        """When the source's topics were last brought to the target."""
        self._committing = asyncio.Lock()
        self._clients = clients = connect(config, source)
        group_id = config.group_of(source)
        self._store = ProgressStore(clients.target, group_id)
        self._deselected = DeselectedTopics(config, source, clients.target, self._commit_now)
        self._deselected_noted = -1
        """The generation of the group in which this worker has marked them."""
        self._matched: list[str] | None = None
        self._unmatched: list[str] = []
        self._wanted: int | None = None
        self._rate = Rate()
        self._ready: list[MirroredTopic] = []
        self._changed = time.monotonic()
        self._waits = Waits()
        self._causes: dict[TaskName, Cause] = {}
        """Why partitions wait whose tasks are open, as far as leaders are the cause."""
        context = Context(
            config,
            source,
            clients,
            self._store,
            self._commit_now,
            self._counters,
            self._reachability,
            lambda topic: self._allowed.origins(topic),
            self._bytes_per_second if source.max_bytes_per_second else None,
            lambda: self.member.is_leader,
        )
        self._mode = MODES[config.mode](context)
        self._topics, self._flow = self._mode.topics, self._mode.flow
        self._allowed = AllowedTopics(config, source, clients, follows_promoted=self._mode.follows_promoted)
        self._losses = TargetLosses(clients.target, clients.producing, self._flow.lost)
        self._groups = GroupSync(
            config.includes_group,
            clients.source_groups,
            clients.target_groups,
            lambda: self._flow.tasks,
            self._counters,
            keeps_epochs=self._mode.keeps_epochs,
            unmatched_in=config.unmatched_groups,
        )
        self._groups_error = ""
        self.member = GroupMembership(
            clients.joining, group_id, endpoint, assigned=self._flow.start, revoked=self._revoked
        )

    async def run(self) -> None:
        """Run until cancelled; then commit progress and leave the group. Raises MirrorRefused."""
        try:
            await self.member.find_owner()
            await self._refresh()  # otherwise the first assignment would be empty
            async with asyncio.TaskGroup() as running:
                running.create_task(self._refresh_on())
                running.create_task(self._commit_on())
                running.create_task(self._watch_on())
                running.create_task(self._check_for_losses_on())
                running.create_task(self.member.run())
                if self.config.groups_include:
                    running.create_task(self._copy_positions_on())
                await self._flow.failure
        finally:
            await self._mode.close()
            await self._clients.close()

    @property
    def status(self) -> SourceStatus:
        now = int(time.time() * 1000)
        tasks = list(self._flow.tasks.values())
        errors = [self._reachability.error, self._target_reachability.error, self._target_error]
        errors += [
            *self._topics.problems.values(),
            *self._allowed.loops.values(),
            *self._allowed.doubled.values(),
        ]
        errors += [
            *(task.error for task in tasks),
            self._flow.assignment.error,
            self.member.conflict,
            self.member.error,
        ]
        errors += [self._groups_error, *self._groups.problems.values()]
        problems = [Problem("NameTaken", self.member.conflict)] if self.member.conflict else []
        problems += [Problem(task.reason, task.error) for task in tasks if task.reason]
        problems += [Problem("TopicRefused", error) for error in self._topics.problems.values()]
        problems += [Problem("Rejoining", words) for words in self._topics.resyncing.values()]
        problems += [Problem("MirroredTwice", error) for error in self._allowed.doubled.values()]
        waiting = self._observed().since(LONG_S, time.monotonic())
        problems += [Problem(PARTITION_WAITING, words) for words in messages(waiting)]
        if self._target_error and time.monotonic() - self._refreshed >= LONG_S and self._reaches_both:
            problems.append(Problem(PARTITION_WAITING, no_refresh(self._target_error)))
        if self._mode.reports_loops:
            problems += [Problem("MirrorLoop", error) for error in self._allowed.loops.values()]
        return SourceStatus(
            self.source.name,
            self._reachability.reachable,
            sorted({task.target_topic for task in tasks}),
            len(tasks),
            sum(task.lag for task in tasks),
            max((task.lag_seconds(now) for task in tasks), default=0.0),
            next((error for error in errors if error), ""),
            self._counters,
            len(self._groups.groups) if self.config.groups_include else None,
            gaps_of(tasks, now),
            sorted({*self._topics.replaced, *(task.topic for task in tasks if task.findings.replaced)}),
            self._reachability.reason,
            self._target_reachability.as_json(),
            problems,
            None if self._matched is None else len(self._matched),
            self.source.max_bytes_per_second,
            self._rate.per_second(),
            by_topic(tasks, self._flow.written, now),
            self._mode.diverged,
            self._mode.promoted,
            min((task.observed_ms for task in tasks), default=0),
            self._wanted,
            sum(task.is_lag_unknown(now) for task in tasks),
            sum(task.acknowledged.is_new and task.lag > 0 for task in tasks),
            len(waiting),
            self._unmatched[:UNMATCHED],
            None if self._groups.unmatched is None else self._groups.unmatched[:UNMATCHED],
        )

    # ---- the topics to mirror

    async def _refresh_on(self) -> None:
        while True:
            is_new = time.monotonic() - self._changed < NEW_S
            await asyncio.sleep(NEW_REFRESH_S if is_new else REFRESH_S)
            await self._refresh()

    async def _refresh(self) -> None:
        """Report temporary errors in the status instead of raising them."""
        source, _ = await asyncio.gather(
            _reach(self._clients.source, self._reachability, None),
            _reach(self._clients.target, self._target_reachability, []),
        )
        if source is not None and self._target_reachability.reachable:
            await self._follow(source)

    async def _follow(self, cluster: MetadataResponse) -> None:
        """Create and update the topics of the target."""
        try:
            self._refuse_itself()
            topics = select(self.config, self.source, cluster)
            if (names := [topic.name or "" for topic in topics]) != self._matched:
                self._matched, self._unmatched = names, self.config.unmatched(names)
            known = {topic.target_topic for topic in self._ready}
            try:
                allowed, unknown = await self._allowed.of(topics, known, owns=self.member.owns)
            finally:
                for task in self._flow.tasks.values():
                    task.origins = self._allowed.origins(task.topic)
            if not self.member.owns:
                self._wanted = None
                return
            ready = await self._topics.ensure(allowed)
            if ready != self._ready:
                self._ready, self._changed = ready, time.monotonic()
            self._wanted = sum(topic.partitions for topic in ready)
            self.member.offer(ready)
            if unknown is not None:
                self._wanted = sum(len(topic.partitions) for topic in topics)
                raise unknown
            await self._note_deselected()
            self._target_error, self._refreshed = "", time.monotonic()
        except TRANSIENT as error:
            if not self._target_error:
                logger.warning("source %s: cannot refresh topics, retrying: %s", self.source.name, error)
            self._target_error = str(error)

    async def _note_deselected(self) -> None:
        """Mark deselected topics, once in each generation that this worker leads."""
        member = self.member
        if (
            member.is_leader
            and member.is_stable
            and self._deselected_noted != (generation := member.generation)
        ):
            await self._deselected.note()
            self._deselected_noted = generation

    def _refuse_itself(self) -> None:
        here, there = self._clients.source.cluster_id, self._clients.target.cluster_id
        if here is not None and here == there and self.config.naming is Naming.SAME:
            raise MirrorRefused(
                f"sources: {self.source.name} ({self.source.bootstrap}) and the target ({self.config.target}) are one"
                f" cluster, {here}: with naming Same each topic would be mirrored into itself: expected another"
                " cluster, or naming Prefixed"
            )

    def _bytes_per_second(self, tasks: int) -> float:
        """The limit for a number of tasks: workers share it in proportion to their tasks."""
        return (self.source.max_bytes_per_second or 0) * tasks / max(self._wanted or 0, tasks, 1)

    async def _copy_positions_on(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            try:
                await self._groups.sync()
                self._groups_error = ""
            except TRANSIENT as error:
                self._groups_error = f"consumer groups: {error}"

    # ---- partitions that wait

    async def _watch_on(self) -> None:
        """Note waits while nobody reads the status, too; and find out why open tasks wait."""
        while True:
            await asyncio.sleep(WATCH_S)
            long = self._observed().since(LONG_S / 2, time.monotonic())
            open_ones = [name for name in long if (name.topic, name.partition) in self._flow.tasks]
            causes: dict[TaskName, Cause] = {}
            with contextlib.suppress(*TRANSIENT):
                causes = await self._mode.recovery.causes(open_ones) if open_ones else {}
            self._causes = causes

    async def _check_for_losses_on(self) -> None:
        while True:
            await asyncio.sleep(LOSSES_CHECK_S)
            with contextlib.suppress(*TRANSIENT):
                await self._losses.check(self._flow.tasks.values())

    @property
    def _reaches_both(self) -> bool:
        return self._reachability.reachable and self._target_reachability.reachable

    def _observed(self) -> Waits:
        """The waits until now. None while a cluster does not respond at all: the status says that by itself."""
        now = time.monotonic()
        if not self._reaches_both:
            self._refreshed = now
            self._waits.observe({}, now)
            return self._waits
        if (waiting := self._flow.assignment.waiting(self._flow.tasks)) is None:
            return Waits()  # another worker may have the partitions by now
        self._waits.observe({name: self._causes.get(name, cause) for name, cause in waiting.items()}, now)
        return self._waits

    # ---- this worker's tasks, and their progress

    async def _revoked(self, lost: bool) -> None:
        """Stop; wait for pending responses and commit, unless another worker may already have the tasks."""
        await self._flow.stop(drain=not lost)
        if not lost and self._flow.tasks:
            last = asyncio.create_task(self._commit())
            await asyncio.wait([last], timeout=DRAIN_S)
            if not last.done() or last.exception() is not None:
                why = last.exception() if last.done() else "no answer in time"
                logger.warning("source %s: cannot commit the last progress: %s", self.source.name, why)
                await supervision.cancel([last])
        self._flow.tasks = {}

    async def _commit_on(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            self._rate.sample(time.monotonic(), self._counters)
            with contextlib.suppress(*TRANSIENT):
                await self._commit()

    async def _commit(self) -> None:
        ready = [
            (task, progress)
            for task in self._flow.tasks.values()
            if not (task.is_recovering or task.findings.replaced)
            and (progress := task.to_commit()) is not None
        ]
        if ready:
            await self._commit_now({task.target: progress for task, progress in ready})
            for task, progress in ready:
                task.committed = progress

    async def _commit_now(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """Raises BrokerError or ApiError unless all progress is stored."""
        try:
            async with self._committing:
                answers = await self._store.commit(progress, self.member.member_id, self.member.generation)
            self._counters.commits += 1
            for (topic, partition), error in answers.items():
                if error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
                    self.member.fence()
                if error:
                    raise ApiError(error, f"progress of {topic}-{partition}: {error.message}")
        except TRANSIENT as error:
            self._counters.failures += 1
            logger.warning("source %s: cannot commit progress, retrying: %s", self.source.name, error)
            raise


async def _reach(
    cluster: ClusterClient, reachability: Reachability, topics: Collection[str] | None
) -> MetadataResponse | None:
    try:
        found = await cluster.metadata(topics)
    except TRANSIENT as error:
        reachability.lost(error)
        return None
    reachability.found()
    return found
