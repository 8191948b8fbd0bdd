"""Identity mode: finds the positions of lanes from both logs, and stops lanes that must not continue.

A lane continues at the end of the target's log. Before that, five look-ups follow, for many lanes at once:

    the target's log     MirrorAppend without batches: its end, and the leader epoch of its last batch
    the source's topic   its id: another id means that the topic was deleted and created again
    the epoch there      OffsetForLeaderEpoch: the source must still have that epoch, at least up to that end.
                         Otherwise the logs have diverged: the source was restored from an older copy, or elected a
                         leader that lacked records
    the batch there      the source's batch at the offset of the target's last one: after a restore, epochs may be
                         reused
    the source's log     its start: if it is beyond the target's end, records are missing (onGap)

All these requests go to one leader of the source, under its epoch, and the lane fetches only under this epoch: once
another broker leads, the source refuses (KIP-320), and the lane compares the logs again.

A lane that must not continue reports the reason and retries every few seconds. It changes nothing in the target.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from millstream_kafka.batch import HEADER_SIZE, read_header
from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol import mirror_append, offset_for_leader_epoch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.mirror_append import (
    MirrorAppendRequest,
    MirrorPartition,
    MirrorPartitionResponse,
    MirrorTopic,
)
from millstream_kafka.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..aggregate.history import not_replicated_yet
from ..config.config import OnGap
from ..kafka.log_reader import EARLIEST, LATEST, headers_in, may_be_compacted, offsets_at, read
from ..kafka.progress import Gap, Progress, ProgressStore, target_number
from ..kafka.topics import leaders_of
from ..membership.member import LaneName
from ..partitions.opening import Keeper, Leaders
from ..partitions.partition_task import BATCH_NOT_MIRRORED, DIVERGED, Lane, Side
from ..partitions.stats import Counters
from ..partitions.waiting import Cause, no_leader
from .flow import CopyLane

LOOK_AGAIN_S = 2.0
FETCHES_AT_ONCE = 32
QUERY_TIMEOUT_MS = 5_000

logger = logging.getLogger(__name__)


class MustWait(Exception):
    """The lane must not continue in this state; the message says why, and what to do. ``reason`` as in `Lane`."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


A = TypeVar("A")
Trouble = MustWait | ApiError | BrokerError


class CopyKeeper(Keeper):
    """Opens and recovers the lanes of one source."""

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
        self._waiting: dict[CopyLane, asyncio.Future[Trouble | None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looks = supervision.Tasks()

    async def _open(self, names: Sequence[LaneName]) -> tuple[list[Lane], dict[LaneName, Cause]]:
        # Where a lane continues, the target's log tells: what anybody else has committed there is of no importance.
        stored = await self._store.read(
            [(name.target_topic, name.partition) for name in names], skip_unreadable=True
        )
        cluster_id = self._at_source.cluster_id or ""
        lanes = []
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
                seen_ms=known.seen_ms,
                is_new=known.is_new or known.producer_id != target,
                groups=known.groups if known.producer_id == target else (),
            )
            lane = CopyLane(name.topic, name.partition, name.target_topic, progress)
            lane.origins = self._origins(name.topic)
            lanes.append(lane)
        for lane, problem in (await self._look(lanes)).items():
            reason = ""
            if isinstance(problem, MustWait):
                reason = problem.reason
                logger.error("%s", problem)
            lane.fail(str(problem), reason=reason, side=self.side_of(problem))  # its recovery retries
        for lane in lanes:
            lane.recovering = False
        return [*lanes], {}

    async def recover(self, lane: Lane) -> None:
        """Prepare the lane to fetch and send again; nothing is in flight. Raises BrokerError, ApiError."""
        assert isinstance(lane, CopyLane)
        if lane.repeats and not lane.must_compare:
            lane.rewind(lane.acknowledged)
            return
        while (problem := await self._look_together(lane)) is not None:
            if not isinstance(problem, MustWait):
                raise problem
            if lane.error != str(problem):
                logger.error("%s", problem)
            lane.error, lane.reason = str(problem), problem.reason
            if lane.stopped_at is not None:
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        if lane.reason != BATCH_NOT_MIRRORED:  # this reason holds until a batch is appended
            lane.error = lane.reason = ""

    async def _look_together(self, lane: CopyLane) -> Trouble | None:
        """Like `_look`, but one run serves all lanes that arrive while leaders are looked up.

        A lane waits for no other leader's response. Raises BrokerError, ApiError.
        """
        waiting = self._waiting[lane] = asyncio.get_running_loop().create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_all())
        problem: Trouble | None = await waiting
        return problem

    async def _look_for_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                problems, groups, under = await self._by_leaders([*waiting])
            except Exception as error:
                _settle(waiting, [*waiting], error)
                continue
            _settle(waiting, problems, problems)
            for lanes in groups:
                self._looks.add(asyncio.create_task(self._look_for(lanes, under, waiting)))

    async def _look_for(
        self,
        lanes: Mapping[CopyLane, Leaders],
        under: Mapping[TopicPartition, int],
        waiting: Mapping[CopyLane, asyncio.Future[Trouble | None]],
    ) -> None:
        try:
            _settle(waiting, lanes, await self._look_at(lanes, under))
        except Exception as error:
            _settle(waiting, lanes, error)
        finally:
            for lane in lanes:
                waiting[lane].cancel()  # unless it is done

    async def _look(self, lanes: Sequence[CopyLane]) -> dict[CopyLane, Trouble]:
        """Make lanes ready to continue; return the problems of the others. Raises BrokerError, ApiError."""
        problems, groups, under = await self._by_leaders(lanes)
        for found in await asyncio.gather(*(self._look_at(some, under) for some in groups)):
            problems |= found
        return problems

    async def _by_leaders(
        self, lanes: Sequence[CopyLane]
    ) -> tuple[dict[CopyLane, Trouble], list[dict[CopyLane, Leaders]], dict[TopicPartition, int]]:
        """The problems of lanes without leaders, the others by their leaders, and the source's leader epochs."""
        problems: dict[CopyLane, Trouble] = {}
        groups: dict[Leaders, dict[CopyLane, Leaders]] = {}
        for lane in lanes:
            lane.compared_at = time.monotonic()
        ids, at, under = await leaders_of(self._at_source, {lane.topic for lane in lanes})
        _, there, _ = await leaders_of(self._at_target, {lane.target_topic for lane in lanes})
        for lane in lanes:
            known = ids.get(lane.topic)
            lane.replaced = known is not None and known != lane.acknowledged.topic_id
            if lane.replaced:
                problems[lane] = MustWait(replaced(lane.topic, lane.target_topic))
                continue
            leaders = Leaders(at.get(lane.source, -1), there.get(lane.target, -1))
            for cause, node in ((no_leader("source"), leaders.source), (no_leader("target"), leaders.target)):
                if node < 0:
                    words = f"{lane}: {cause.words}"
                    problems.setdefault(lane, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, words))
            if lane not in problems:
                groups.setdefault(leaders, {})[lane] = leaders
        return problems, list(groups.values()), under

    async def _look_at(
        self, lanes: Mapping[CopyLane, Leaders], under: Mapping[TopicPartition, int]
    ) -> dict[CopyLane, Trouble]:
        """Like `_look`, for lanes with the same leaders."""
        problems: dict[CopyLane, Trouble] = {}
        there: dict[CopyLane, MirrorPartitionResponse] = {}
        answers = await self._ask_target(lanes)
        for lane, answer in answers.items():
            if isinstance(answer, MirrorPartitionResponse):
                there[lane] = answer
            else:
                problems[lane] = answer
        leaders = {lane.source: lanes[lane].source for lane in there}
        epochs = await self._ask_epochs(
            leaders, under, {lane.source: one.last_epoch for lane, one in there.items()}
        )
        replicated = await self._ask_replicated({lane: lanes[lane] for lane in there})
        starts = await self._ask_offsets(leaders, EARLIEST)
        ends = await self._ask_offsets(leaders, LATEST)
        for lane, answer in there.items():
            epoch, start, end = epochs[lane.source], starts[lane.source], ends[lane.source]
            try:
                if isinstance(epoch, Exception):
                    raise epoch
                if isinstance(start, Exception):
                    raise start
                if isinstance(end, Exception):
                    raise end
                self._check_epoch(lane, answer, epoch, end)
                _check_replicated(lane, answer, replicated[lane])
            except (MustWait, ApiError, BrokerError) as error:
                problems[lane] = error
        limit = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def stand(lane: CopyLane) -> None:
            start, end = starts[lane.source], ends[lane.source]
            assert isinstance(start, int)
            assert isinstance(end, int)
            try:
                async with limit:
                    await self._check_last_batch(lane, there[lane], under[lane.source], start)
                self._stand(lane, there[lane], start, end)
                lane.source_epoch = under[lane.source]
            except (MustWait, ApiError, BrokerError) as error:
                problems[lane] = error

        await asyncio.gather(*(stand(lane) for lane in there if lane not in problems))
        return problems

    def _check_epoch(
        self, lane: CopyLane, there: MirrorPartitionResponse, epoch: tuple[int, int], end: int
    ) -> None:
        """Raise MustWait unless the source has the target's last epoch up to the target's end."""
        ours, last = there.log_end_offset, there.last_epoch
        if last >= 0 and (epoch[0] != last or epoch[1] < ours):
            said = f"has no epoch {last}" if epoch[0] != last else f"ends epoch {last} at offset {epoch[1]}"
            raise _diverged(lane, f"ends at offset {ours} with leader epoch {last}, the source {said}")
        if last < 0 and ours > end:
            raise _diverged(lane, f"ends at offset {ours}, the source at {end}")

    async def _check_last_batch(
        self, lane: CopyLane, there: MirrorPartitionResponse, under: int, start: int
    ) -> None:
        """Raise MustWait unless the source has the target's last batch, or has deleted it; its log begins at ``start``.

        ApiError if the source does not return it yet.
        """
        if there.last_header is None or len(there.last_header) < HEADER_SIZE:
            return
        ours = read_header(there.last_header)
        answer = await read(self._at_source, lane.source, ours.base_offset, 1, epoch=under)
        if not (found := headers_in(answer)):
            if answer.error_code and ours.base_offset < start:
                return  # the source has deleted it
            raise not_replicated_yet("source", lane.source, ours.base_offset)
        theirs = found[0]
        if theirs.base_offset > ours.last_offset or may_be_compacted(ours) or may_be_compacted(theirs):
            return
        if (ours.base_offset, ours.crc) != (theirs.base_offset, theirs.crc):
            raise _diverged(
                lane, f"has another batch at offset {ours.base_offset} than the source, in its last epoch"
            )

    def _stand(self, lane: CopyLane, there: MirrorPartitionResponse, start: int, end: int) -> None:
        """Continue at the target's end. Raises MustWait."""
        ours = there.log_end_offset
        lane.target_start, lane.source_start = there.log_start_offset, start
        lane.saw(end)
        progress = replace(lane.acknowledged, offset=max(ours, start), target_offset=ours)
        if 0 < ours < start:
            lane.acknowledged = replace(lane.acknowledged, offset=ours, target_offset=ours)
            progress = replace(progress, gap=self._passed(lane, ours, start))
        lane.stopped_at = None
        lane.rewind(progress)

    def _passed(self, lane: CopyLane, ours: int, start: int) -> Gap:
        """The gap to skip. Raises MustWait if a user must decide (onGap: Stop)."""
        known = lane.acknowledged.gap
        if known is not None and (known.offset, known.next_offset) == (ours, start):
            return known  # nothing was sent since it was counted
        gap = Gap(ours, start, _now_ms())
        lost = f"{lane}: the source deleted offsets {ours} to {start - 1} before they were mirrored"
        if self._on_gap is OnGap.STOP:
            lane.stopped_at = gap
            raise MustWait(
                f"{lost}: mirroring of this partition stopped: set onGap to SkipToEarliest to continue"
            )
        self._counters.missing_records += start - ours
        logger.error("%s", lost)
        return gap

    # ---- queries for many partitions, one request per leader

    async def _ask_target(
        self, lanes: Mapping[CopyLane, Leaders]
    ) -> dict[CopyLane, MirrorPartitionResponse | Trouble]:
        by_target = {lane.target: lane for lane in lanes}

        async def ask(node: int, keys: list[TopicPartition]) -> dict[TopicPartition, MirrorPartitionResponse]:
            topics: dict[str, MirrorTopic] = {}
            for key in keys:
                topic = topics.setdefault(key[0], MirrorTopic(key[0], by_target[key].topic_id, []))
                topic.partitions.append(MirrorPartition(key[1]))
            cluster_id = by_target[keys[0]].acknowledged.cluster_id
            request = MirrorAppendRequest(cluster_id, QUERY_TIMEOUT_MS, list(topics.values()))
            response = await self._at_target.call_node(node, mirror_append.API, request)
            return {(topic.name, one.index): one for topic in response.topics for one in topic.partitions}

        found: dict[CopyLane, MirrorPartitionResponse | Trouble] = {}
        leaders = {lane.target: of_lane.target for lane, of_lane in lanes.items()}
        for key, answer in (await _by_leader(leaders, [*by_target], ask)).items():
            lane = by_target[key]
            found[lane] = answer
            if isinstance(answer, MirrorPartitionResponse) and answer.error_code:
                error = ErrorCode.of(answer.error_code)
                message = answer.error_message or f"{lane}: {error.message} in the target"
                must_wait = error in (ErrorCode.POLICY_VIOLATION, ErrorCode.INCONSISTENT_TOPIC_ID)
                found[lane] = MustWait(message) if must_wait else ApiError(error, message)
        return found

    async def _ask_replicated(
        self, lanes: Mapping[CopyLane, Leaders]
    ) -> dict[CopyLane, int | ApiError | BrokerError]:
        """The high watermarks in the target."""

        async def ask(node: int, keys: list[TopicPartition]) -> dict[TopicPartition, int | ApiError]:
            answers = await offsets_at(self._at_target, node, keys, LATEST)
            return {
                key: _refusal(key[0], one.error_code, "target") or one.offset for key, one in answers.items()
            }

        leaders = {lane.target: of_lane.target for lane, of_lane in lanes.items()}
        found = await _by_leader(leaders, [*leaders], ask)
        return {lane: found[lane.target] for lane in lanes}

    async def _ask_epochs(
        self,
        leaders: Mapping[TopicPartition, int],
        under: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, tuple[int, int] | ApiError | BrokerError]:
        """The source's largest epoch up to the given one, and its end; ``under`` has the leaders' epochs."""

        async def ask(
            node: int, keys: list[TopicPartition]
        ) -> dict[TopicPartition, tuple[int, int] | ApiError]:
            topics: dict[str, OffsetForLeaderTopic] = {}
            for key in keys:
                topic = topics.setdefault(key[0], OffsetForLeaderTopic(key[0], []))
                topic.partitions.append(OffsetForLeaderPartition(key[1], under[key], max(epochs[key], 0)))
            request = OffsetForLeaderEpochRequest(topics=list(topics.values()))
            response = await self._at_source.call_node(node, offset_for_leader_epoch.API, request)
            return {
                (topic.topic, one.partition): _refusal(topic.topic, one.error_code)
                or (one.leader_epoch, one.end_offset)
                for topic in response.topics
                for one in topic.partitions
            }

        return await _by_leader(leaders, [*leaders], ask)

    async def _ask_offsets(
        self, leaders: Mapping[TopicPartition, int], timestamp: int
    ) -> dict[TopicPartition, int | ApiError | BrokerError]:
        """The source's offsets for a timestamp."""

        async def ask(node: int, keys: list[TopicPartition]) -> dict[TopicPartition, int | ApiError]:
            answers = await offsets_at(self._at_source, node, keys, timestamp)
            return {key: _refusal(key[0], one.error_code) or one.offset for key, one in answers.items()}

        return await _by_leader(leaders, [*leaders], ask)


def _settle(
    waiting: Mapping[CopyLane, asyncio.Future[Trouble | None]],
    lanes: Iterable[CopyLane],
    found: Mapping[CopyLane, Trouble] | Exception,
) -> None:
    """Hand these lanes their problems, or None, or an error."""
    for lane in lanes:
        if (one := waiting[lane]).done():
            continue
        if isinstance(found, Exception):
            one.set_exception(found)
        else:
            one.set_result(found.get(lane))


def _check_replicated(
    lane: CopyLane, there: MirrorPartitionResponse, replicated: int | ApiError | BrokerError
) -> None:
    """Raise ApiError while the target may lose the end of its log: positions of groups count all that it has."""
    if isinstance(replicated, Exception):
        raise replicated
    if replicated < there.log_end_offset:
        raise not_replicated_yet("target", lane.target, replicated)


def _refusal(topic: str, code: int, side: Side = "source") -> ApiError | None:
    return ApiError(ErrorCode.of(code), f"topic {topic} in the {side}") if code else None


async def _by_leader(
    leaders: Mapping[TopicPartition, int],
    keys: Sequence[TopicPartition],
    ask: Callable[[int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, A]]],
) -> dict[TopicPartition, A | ApiError | BrokerError]:
    """Query each leader once; return a response or an error for every partition."""
    missing = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "a partition has no leader at the moment")
    found: dict[TopicPartition, A | ApiError | BrokerError] = dict.fromkeys(keys, missing)
    by_node: dict[int, list[TopicPartition]] = {}
    for key in keys:
        if key in leaders:
            by_node.setdefault(leaders[key], []).append(key)

    async def one(node: int, of_node: list[TopicPartition]) -> None:
        try:
            found.update(await ask(node, of_node))
        except BrokerError as error:
            found.update(dict.fromkeys(of_node, error))

    await asyncio.gather(*(one(node, of_node) for node, of_node in by_node.items()))
    return found


def _diverged(lane: CopyLane, what: str) -> MustWait:
    return MustWait(
        f"{lane}: diverged: the target's log {what}: the source lost records, or was restored from an older copy."
        f" Nothing is overwritten: promote topic {lane.target_topic} to keep it, or delete it in the target to mirror"
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
