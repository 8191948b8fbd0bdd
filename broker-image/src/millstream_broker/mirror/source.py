"""One source: what of it is to be mirrored, the lanes that are this worker's, and the pumps that keep them flowing.

    refresh     looks at the source's topics, makes them in the target, tells the group's leader what there is
    member      shares the partitions with the other workers; hands lanes to this one and takes them back
    supervise   opens lanes, brings failed ones back, runs a pump for each broker of the source
    pump        fetches from one broker for all lanes it leads, and sends on, without waiting for the answers
    commit      stores progress, of all lanes in one request

A source that cannot be reached does not disturb the others; it is tried again until it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from ..client import BrokerError, ClusterClient
from ..protocol import fetch, produce
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ..protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from .config import MirrorConfig, Naming, Source
from .lane import Lane, Sent
from .lanes import LaneKeeper
from .member import LaneName, Member
from .progress import Progress, ProgressStore, TopicPartition
from .rewrite import Outgoing, UnusableBatch, joined, rewrite
from .stats import Counters, SourceStatus
from .topics import TopicKeeper, select

REFRESH_S = 2.0
COMMIT_S = 0.25
FETCH_WAIT_MS = 250
FETCH_BYTES = 8 * 1024 * 1024
PARTITION_BYTES = 1024 * 1024
LANE_BYTES = 4 * 1024 * 1024
"""A lane with more than this on its way is not fetched for."""
IN_FLIGHT_BYTES = 32 * 1024 * 1024
"""Nor is any lane of the source, with more than this on the way in all."""
PRODUCE_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_S = 3.0
BACKOFF_S, BACKOFF_MAX_S = 0.1, 5.0
DRAIN_S = 3.0

_TRANSIENT = (BrokerError, ApiError, OSError)
_UNNUMBERED = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
_TOO_MUCH_AT_ONCE = (
    ErrorCode.INVALID_RECORD,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.MESSAGE_TOO_LARGE,
)

Part = tuple[Lane, Sent, "memoryview | bytes"]

logger = logging.getLogger(__name__)


class MirrorRefused(Exception):
    """What is asked for must not be done; one line for people."""


class SourceMirror:
    def __init__(self, config: MirrorConfig, source: Source) -> None:
        self.config = config
        self.source = source
        self.counters = Counters()
        self.lanes: dict[TopicPartition, Lane] = {}
        self.topics: list[str] = []
        self._reachable = False
        self._error = ""
        client_id = f"millstream-mirror-{config.name}"
        # A connection serves one request at a time, so what waits (fetches, joins) has connections of its own.
        self._source_control, self._source_data = (_client(source.bootstrap, client_id) for _ in range(2))
        self._target_control, self._target_data, self._target_group = (
            _client(config.target, client_id) for _ in range(3)
        )
        group_id = config.group_of(source)
        self._store = ProgressStore(self._target_control, group_id)
        self._keeper = LaneKeeper(
            self._source_control, self._target_control, self._store, self._commit_now, self.counters
        )
        self._topic_keeper = TopicKeeper(config, source, self._source_control, self._target_control)
        self.member = Member(self._target_group, group_id, assigned=self._assigned, revoked=self._revoked)
        self._supervisor: asyncio.Task[None] | None = None
        self._workers: dict[Any, asyncio.Task[None]] = {}  # pumps by broker, recoveries by lane
        self._produces: set[asyncio.Task[None]] = set()
        self._bytes_in_flight = 0
        self._wake = asyncio.Event()
        self._committing = asyncio.Lock()

    # ---- life

    async def run(self) -> None:
        """Until it is cancelled; then progress is committed and the group left. Raises MirrorRefused."""
        with contextlib.suppress(*_TRANSIENT):
            await self._refresh()  # so that the first assignment is of something
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._refresh_on())
                tasks.create_task(self._commit_on())
                tasks.create_task(self.member.run())
        finally:
            clients = (self._source_control, self._source_data)
            targets = (self._target_control, self._target_data, self._target_group)
            for client in (*clients, *targets):
                await client.close()

    @property
    def status(self) -> SourceStatus:
        now = int(time.time() * 1000)
        lanes = list(self.lanes.values())
        problems = [self._error, *self._topic_keeper.problems.values(), *(lane.error for lane in lanes)]
        problems.append(self.member.error)
        return SourceStatus(
            self.source.name,
            self._reachable,
            sorted({lane.target_topic for lane in lanes}),
            len(lanes),
            sum(lane.lag for lane in lanes),
            max((lane.lag_seconds(now) for lane in lanes), default=0.0),
            next((problem for problem in problems if problem), ""),
            self.counters,
        )

    def _source_failed(self, error: Exception) -> None:
        if self._reachable or not self._error:
            logger.warning("source %s: %s", self.source.name, error)
        self._reachable, self._error = False, str(error)

    def _source_answered(self) -> None:
        if not self._reachable:
            logger.info("source %s: reached at %s", self.source.name, self.source.bootstrap)
        self._reachable, self._error = True, ""

    # ---- what there is to mirror

    async def _refresh_on(self) -> None:
        while True:
            with contextlib.suppress(*_TRANSIENT):
                await self._refresh()
            await asyncio.sleep(REFRESH_S)

    async def _refresh(self) -> None:
        try:
            cluster = await self._source_control.metadata(None)
            self._source_answered()
        except _TRANSIENT as error:
            self._source_failed(error)
            raise
        if self._target_control.cluster_id is None:
            await self._target_control.metadata([])
        self._refuse_a_loop()
        self.member.offer(await self._topic_keeper.ensure(select(self.config, self.source, cluster)))

    def _refuse_a_loop(self) -> None:
        here, there = self._source_control.cluster_id, self._target_control.cluster_id
        if here is not None and here == there and self.config.naming is Naming.SAME:
            raise MirrorRefused(
                f"sources: {self.source.name} ({self.source.bootstrap}) and the target ({self.config.target}) are one"
                f" cluster, {here}: with naming Same each topic would be mirrored into itself: expected another"
                " cluster, or naming Prefixed"
            )

    # ---- which lanes are this worker's

    def _assigned(self, names: list[LaneName]) -> None:
        self._supervisor = asyncio.create_task(self._supervise(names))

    async def _revoked(self, lost: bool) -> None:
        """Stop; what was sent is waited for and committed, unless the lanes may be somebody else's already."""
        if self._supervisor is None:
            return
        stopping = [self._supervisor, *self._workers.values()]
        self._supervisor = None
        self._workers.clear()
        await _cancel(stopping)
        if self._produces and not lost:
            await asyncio.wait(self._produces, timeout=DRAIN_S)
        await _cancel(list(self._produces))
        if not lost:
            last = asyncio.create_task(self._commit())
            await asyncio.wait([last], timeout=DRAIN_S)
            if not last.done() or last.exception() is not None:
                why = last.exception() if last.done() else "no answer in time"
                logger.warning("source %s: the last progress is not committed: %s", self.source.name, why)
                await _cancel([last])
        self.lanes.clear()
        self._bytes_in_flight = 0

    async def _supervise(self, names: list[LaneName]) -> None:
        lanes = await self._open(names)
        self.lanes = {(lane.topic, lane.partition): lane for lane in lanes}
        while True:
            self._wake.clear()
            self._workers = {key: task for key, task in self._workers.items() if not task.done()}
            for lane in self.lanes.values():
                if lane.failed and not lane.in_flight and not lane.recovering:
                    lane.recovering = True
                    self._workers[lane] = asyncio.create_task(self._recover(lane))
            all_found = await self._locate([lane for lane in lanes if lane.leader < 0])
            for node in {lane.leader for lane in lanes if lane.leader >= 0} - self._workers.keys():
                self._workers[node] = asyncio.create_task(self._pump(node))
            await _wait(self._wake, BACKOFF_MAX_S if all_found else BACKOFF_S)

    async def _open(self, names: list[LaneName]) -> list[Lane]:
        pause = BACKOFF_S
        while True:
            try:
                return await self._keeper.open(names)
            except (*_TRANSIENT, ValueError) as error:
                self._failure(f"cannot open lanes: {error}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACKOFF_MAX_S)

    async def _locate(self, lost: list[Lane]) -> bool:
        """Find which of the source's brokers lead these lanes; False where one is not led at the moment."""
        if not lost:
            return True
        try:
            cluster = await self._source_data.metadata({lane.topic for lane in lost})
        except _TRANSIENT as error:
            self._source_failed(error)
            return False
        leaders = {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in cluster.topics
            for partition in topic.partitions
        }
        for lane in lost:
            lane.leader = leaders.get((lane.topic, lane.partition), -1)
        return all(lane.leader >= 0 for lane in lost)

    async def _recover(self, lane: Lane) -> None:
        pause = min(BACKOFF_S * 2 ** min(lane.failures, 10), BACKOFF_MAX_S) if lane.failures else 0.0
        lane.failures += 1
        while True:
            await asyncio.sleep(pause)
            try:
                await self._keeper.recover(lane)
                break
            except (*_TRANSIENT, ValueError) as error:
                lane.error = str(error)
                self._failure(f"{lane}: {error}")
                pause = min(max(pause * 2, BACKOFF_S), BACKOFF_MAX_S)
        lane.recovering = False
        self._wake.set()

    def _failure(self, what: str) -> None:
        self.counters.failures += 1
        logger.warning("source %s: %s", self.source.name, what)

    # ---- the flow

    async def _pump(self, node: int) -> None:
        pause = BACKOFF_S
        while True:
            lanes = [
                lane for lane in self.lanes.values() if lane.leader == node and lane.may_fetch(LANE_BYTES)
            ]
            if not lanes or self._bytes_in_flight > IN_FLIGHT_BYTES:
                await self._some_progress()
                continue
            asked = {(lane.topic, lane.partition): lane.position for lane in lanes}
            try:
                response = await self._source_data.call_node(
                    node, fetch.API, _fetch_request(asked), timeout=FETCH_WAIT_MS / 1000 + 10
                )
            except BrokerError as error:
                self._source_failed(error)
                self.counters.failures += 1
                self._source_data.forget_leaders()
                await asyncio.sleep(pause)
                pause = min(pause * 2, BACKOFF_MAX_S)
                for lane in lanes:
                    lane.leader = (
                        -1
                    )  # the supervisor finds where it is now, and whether this pump is still needed
                self._wake.set()
                return
            pause = BACKOFF_S
            self._source_answered()
            await self._forward(response, asked)

    async def _some_progress(self) -> None:
        """Wait until an answer or a recovery may have made a lane ready."""
        await _wait(self._wake, BACKOFF_S)
        await asyncio.sleep(0)

    async def _forward(self, response: FetchResponse, asked: Mapping[TopicPartition, int]) -> None:
        """Number what came and send it on; answers are waited for elsewhere."""
        rounds: list[dict[int, list[Part]]] = []
        for topic in response.responses:
            for data in topic.partitions:
                where = (topic.topic, data.partition_index)
                lane = self.lanes.get(where)
                if lane is None or lane.position != asked[where] or not lane.may_fetch(LANE_BYTES):
                    continue  # it failed, or was recovered, meanwhile
                if data.error_code:
                    self._fetch_refused(lane, ErrorCode.of(data.error_code))
                    continue
                lane.saw(data.high_watermark)
                if parts := self._number(lane, data):
                    await self._add(rounds, lane, parts)
        for by_node in rounds:
            for node, of_node in by_node.items():
                self._bytes_in_flight += sum(sent.size for _, sent, _ in of_node)
                task = asyncio.create_task(self._produce(node, of_node))
                self._produces.add(task)
                task.add_done_callback(self._produces.discard)
        if rounds:
            await asyncio.sleep(0)  # lets the requests be written, in this order

    def _fetch_refused(self, lane: Lane, error: ErrorCode) -> None:
        lane.fail(f"{lane}: fetching from {self.source.name}: {error.name}: {error.message}")
        lane.out_of_range = error is ErrorCode.OFFSET_OUT_OF_RANGE
        self._source_data.forget_leaders(lane.topic)
        if not lane.out_of_range:
            lane.leader = -1
            self._failure(lane.error)
        self._wake.set()

    def _number(self, lane: Lane, data: PartitionData) -> list[tuple[list[Outgoing], memoryview | bytes]]:
        """The lane's next batches, as the parts that go into one Produce request each."""
        fetched = data.records
        if not isinstance(fetched, memoryview) or not len(fetched):
            if lane.skip_to is not None and lane.position >= data.high_watermark:
                lane.renumber = "the target has more of it than the source"
                lane.fail(lane.renumber)
                self._wake.set()
            return []
        progress = lane.acknowledged
        try:
            rewritten = rewrite(
                fetched,
                position=lane.position,
                producer_id=progress.producer_id,
                producer_epoch=progress.producer_epoch,
                sequence=lane.sequence,
                aborted=data.aborted_transactions or (),
            )
        except (UnusableBatch, ApiError) as error:
            lane.fail(f"{lane}: {error}")
            self._failure(lane.error)
            self._wake.set()
            return []
        batches = rewritten.batches
        if lane.skip_to is not None:
            rest = lane.skip(batches, rewritten.position)
            if rest is None:
                lane.renumber = "its numbers no longer fit the source's offsets"
                lane.fail(lane.renumber)
                self._wake.set()
                return []
            self.counters.repeated_records += sum(one.records for one in batches) - sum(
                one.records for one in rest
            )
            batches = rest
        if not batches:
            lane.moved_on(rewritten.position)
            return []
        self.counters.rebuilt_batches += sum(batch.start < 0 for batch in batches)
        if lane.probing:
            return [(batches[:1], batches[0].data)]
        if lane.one_by_one:
            return [([batch], batch.data) for batch in batches]
        return [(batches, joined(fetched, batches))]

    async def _add(
        self,
        rounds: list[dict[int, list[Part]]],
        lane: Lane,
        parts: list[tuple[list[Outgoing], memoryview | bytes]],
    ) -> None:
        try:
            node = await self._target_data.leader(*lane.target)
        except _TRANSIENT as error:
            lane.fail(f"{lane}: {error}")
            lane.target_missing = getattr(error, "code", None) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._failure(lane.error)
            self._wake.set()
            return
        while len(rounds) < len(parts):
            rounds.append({})
        for by_node, (batches, data) in zip(rounds, parts, strict=False):
            self.counters.batches += len(batches)
            by_node.setdefault(node, []).append((lane, lane.send(batches), data))

    async def _produce(self, node: int, parts: list[Part]) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        waiting = {}
        for lane, sent, data in parts:
            by_topic.setdefault(lane.target_topic, []).append(PartitionProduceData(lane.partition, data))
            waiting[lane.target] = (lane, sent)
        request = ProduceRequest(
            None,
            -1,
            PRODUCE_TIMEOUT_MS,
            [TopicProduceData(name, of_topic) for name, of_topic in by_topic.items()],
        )
        try:
            response = await self._target_data.call_node(node, produce.API, request)
            for topic in response.responses:
                for answer in topic.partition_responses:
                    lane, sent = waiting.pop((topic.name, answer.index))
                    self._answered(lane, sent, answer)
            for lane, sent in waiting.values():
                lane.fail(f"{lane}: the target did not answer for it", sent)
        except _TRANSIENT as error:
            self._target_data.forget_leaders()
            self._failure(f"producing: {error}")
            for lane, sent in waiting.values():
                lane.fail(f"{lane}: producing: {error}", sent)
        except asyncio.CancelledError:
            for lane, sent in waiting.values():
                lane.fail(f"{lane}: given up", sent)
            raise
        finally:
            self._bytes_in_flight -= sum(sent.size for _, sent, _ in parts)
            self._wake.set()

    def _answered(self, lane: Lane, sent: Sent, answer: PartitionProduceResponse) -> None:
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE or (error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and sent.batches == 1):
            self.counters.records += sent.records
            self.counters.bytes += sent.size
            lane.succeeded(sent, answer.base_offset)
            return
        was_failed = lane.failed
        lane.fail(f"{lane}: producing: {error.name}: {answer.error_message or error.message}", sent)
        if was_failed:
            return  # void because of the one before
        if sent.batches > 1 and error in _TOO_MUCH_AT_ONCE:
            lane.one_by_one = True
            lane.error = ""
        elif error in _UNNUMBERED:
            lane.suspicious = True
            logger.info("%s", lane.error)
        else:
            lane.target_missing = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._target_data.forget_leaders(lane.target_topic)
            self._failure(lane.error)

    # ---- progress

    async def _commit_on(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            try:
                await self._commit()
            except _TRANSIENT as error:
                self._failure(f"committing progress: {error}")

    async def _commit(self) -> None:
        ready = {
            lane.target: progress
            for lane in self.lanes.values()
            if not lane.recovering and (progress := lane.to_commit()) is not None
        }
        if ready:
            lanes = {lane.target: lane for lane in self.lanes.values()}
            await self._commit_now(ready)
            for target, progress in ready.items():
                lanes[target].committed = progress

    async def _commit_now(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """Raises ApiError unless all of it is stored."""
        async with self._committing:
            answers = await self._store.commit(progress, self.member.member_id, self.member.generation)
        self.counters.commits += 1
        for (topic, partition), error in answers.items():
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                continue  # the lanes are about to be taken back, which commits again
            if error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
                self.member.fence()
            if error:
                raise ApiError(error, f"progress of {topic}-{partition}: {error.message}")


def _client(bootstrap: str, client_id: str) -> ClusterClient:
    return ClusterClient(
        bootstrap, client_id, timeout=CONNECT_TIMEOUT_S * 2, connect_timeout=CONNECT_TIMEOUT_S
    )


def _fetch_request(asked: Mapping[TopicPartition, int]) -> FetchRequest:
    by_topic: dict[str, list[FetchPartition]] = {}
    for (topic, partition), offset in asked.items():
        by_topic.setdefault(topic, []).append(
            FetchPartition(partition, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES)
        )
    return FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=1,
        topics=[FetchTopic(topic, partitions) for topic, partitions in by_topic.items()],
    )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    results: list[Awaitable[Any]] = list(tasks)
    await asyncio.gather(*results, return_exceptions=True)
