"""One source: the topics to mirror, this worker's partitions of them, and their progress.

    refresh   looks at the source's topics, makes them in the target, tells the group's leader what there is
    member    shares the partitions with the other workers; lanes start to flow when they come and stop before they go
    commit    stores the progress of all lanes in one request
    groups    copies the positions of consumer groups

An unreachable source does not disturb the others; it is retried until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from .config import MirrorConfig, Naming, Source
from .flow import DRAIN_S, TRANSIENT, Flow
from .groups import LOOK_S, GroupSync
from .lanes import LaneKeeper
from .loops import LoopFinder
from .member import Member
from .progress import Progress, ProgressStore
from .stats import Counters, Reachability, SourceStatus, gaps_of
from .topics import MirroredTopic, TopicKeeper, select

REFRESH_S = 2.0
NEW_REFRESH_S, NEW_S = 0.25, 10.0
"""After a topic came, looks are more frequent for a while: a circle of mirrors that start together soon opens."""
COMMIT_S = 0.25
CONNECT_TIMEOUT_S = 3.0

logger = logging.getLogger(__name__)


class MirrorRefused(Exception):
    """The configured mirror is not allowed; the message is one line for people."""


class SourceMirror:
    def __init__(self, config: MirrorConfig, source: Source) -> None:
        self.config = config
        self.source = source
        self._counters = Counters()
        self._reachability = Reachability(source.name, source.bootstrap)
        self._target_error = ""
        self._committing = asyncio.Lock()
        # A connection serves one request at a time, so requests that wait (fetches, joins) have their own connections.
        client_id = f"millstream-mirror-{config.name}"
        self._source, fetching = (_client(source.bootstrap, client_id) for _ in range(2))
        self._target, producing, joining = (_client(config.target, client_id) for _ in range(3))
        from_groups, to_groups = _client(source.bootstrap, client_id), _client(config.target, client_id)
        self._clients = (self._source, fetching, self._target, producing, joining, from_groups, to_groups)
        group_id = config.group_of(source)
        self._store = ProgressStore(self._target, group_id)
        keeper = LaneKeeper(
            self._source,
            self._target,
            self._store,
            self._commit_now,
            self._counters,
            config.on_gap,
            lambda topic: self._origins.get(topic, ()),
        )
        self._topics = TopicKeeper(config, source, self._source, self._target)
        self._loops = LoopFinder(self._source)
        self._origins: dict[str, tuple[str, ...]] = {}
        self._ready: list[MirroredTopic] = []
        self._changed = time.monotonic()
        self._flow = Flow(source.name, fetching, producing, keeper, self._reachability, self._counters)
        self._groups = GroupSync(
            config.includes_group, from_groups, to_groups, lambda: self._flow.lanes, self._counters
        )
        self._groups_error = ""
        self.member = Member(joining, group_id, assigned=self._flow.start, revoked=self._revoked)

    async def run(self) -> None:
        """Run until cancelled; then commit progress and leave the group. Raises MirrorRefused."""
        try:
            await self._refresh()  # so that the first assignment is not empty
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._refresh_on())
                tasks.create_task(self._commit_on())
                tasks.create_task(self.member.run())
                if self.config.groups_include:
                    tasks.create_task(self._copy_positions_on())
                await self._flow.failure
        finally:
            for client in self._clients:
                await client.close()

    @property
    def status(self) -> SourceStatus:
        now = int(time.time() * 1000)
        lanes = list(self._flow.lanes.values())
        problems = [self._reachability.error, self._target_error, *self._topics.problems.values()]
        problems += [*(lane.error for lane in lanes), self.member.error]
        problems += [self._groups_error, *self._groups.problems.values()]
        return SourceStatus(
            self.source.name,
            self._reachability.reachable,
            sorted({lane.target_topic for lane in lanes}),
            len(lanes),
            sum(lane.lag for lane in lanes),
            max((lane.lag_seconds(now) for lane in lanes), default=0.0),
            next((problem for problem in problems if problem), ""),
            self._counters,
            len(self._groups.groups) if self.config.groups_include else None,
            gaps_of(lanes, now),
            sorted({lane.topic for lane in lanes if lane.replaced}),
        )

    # ---- what there is to mirror

    async def _refresh_on(self) -> None:
        while True:
            is_new = time.monotonic() - self._changed < NEW_S
            await asyncio.sleep(NEW_REFRESH_S if is_new else REFRESH_S)
            await self._refresh()

    async def _refresh(self) -> None:
        """Reports temporary errors in the status instead of raising them."""
        try:
            cluster = await self._source.metadata(None)
            self._reachability.found()
        except TRANSIENT as error:
            self._reachability.lost(error)
            return
        try:
            if self._target.cluster_id is None:
                await self._target.metadata([])
            self._refuse_itself()
            topics = select(self.config, self.source, cluster)
            found = await self._loops.origins()
            self._origins = {topic: tuple(sorted(clusters)) for topic, clusters in found.items()}
            for lane in self._flow.lanes.values():
                lane.origins = self._origins.get(lane.topic, ())
            looping = {
                topic.name for topic in topics if self._target.cluster_id in found.get(topic.name or "", ())
            }
            ready = await self._topics.ensure([topic for topic in topics if topic.name not in looping])
            for name in sorted(name or "" for name in looping):
                self._topics.problems[name] = f"topic {name}: left out: its records come from the target"
            if ready != self._ready:
                self._ready, self._changed = ready, time.monotonic()
            self.member.offer(ready)
            self._target_error = ""
        except TRANSIENT as error:
            if not self._target_error:
                logger.warning("source %s: looking after topics: %s", self.source.name, error)
            self._target_error = str(error)

    def _refuse_itself(self) -> None:
        here, there = self._source.cluster_id, self._target.cluster_id
        if here is not None and here == there and self.config.naming is Naming.SAME:
            raise MirrorRefused(
                f"sources: {self.source.name} ({self.source.bootstrap}) and the target ({self.config.target}) are one"
                f" cluster, {here}: with naming Same each topic would be mirrored into itself: expected another"
                " cluster, or naming Prefixed"
            )

    async def _copy_positions_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._groups.look()
                self._groups_error = ""
            except TRANSIENT as error:
                self._groups_error = f"consumer groups: {error}"

    # ---- which lanes are this worker's, and how far they are

    async def _revoked(self, lost: bool) -> None:
        """Stop; wait for pending responses and commit, unless another worker may already have the lanes."""
        await self._flow.stop(drain=not lost)
        if not lost and self._flow.lanes:
            last = asyncio.create_task(self._commit())
            await asyncio.wait([last], timeout=DRAIN_S)
            if not last.done() or last.exception() is not None:
                why = last.exception() if last.done() else "no answer in time"
                logger.warning("source %s: the last progress is not committed: %s", self.source.name, why)
                await supervision.cancel([last])
        self._flow.lanes = {}

    async def _commit_on(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            with contextlib.suppress(*TRANSIENT):
                await self._commit()

    async def _commit(self) -> None:
        lanes = {lane.target: lane for lane in self._flow.lanes.values() if not lane.recovering}
        ready = {target: lane.to_commit() for target, lane in lanes.items()}
        progress = {target: one for target, one in ready.items() if one is not None}
        if progress:
            await self._commit_now(progress)
            for target, one in progress.items():
                lanes[target].committed = one

    async def _commit_now(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """Raises BrokerError or ApiError unless all of it is stored."""
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
            logger.warning("source %s: committing progress: %s", self.source.name, error)
            raise


def _client(bootstrap: str, client_id: str) -> ClusterClient:
    return ClusterClient(
        bootstrap, client_id, timeout=CONNECT_TIMEOUT_S * 2, connect_timeout=CONNECT_TIMEOUT_S
    )
