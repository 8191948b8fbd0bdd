"""The replicas on this broker: which it leads, which it follows, by what coordination says.

`follow` makes this broker what coordination's state says it is. A partition has a log here while this broker is among
its replicas. It is led (`Broker.partitions`) or followed (`followers`), never both; a partition that is led is all that
the hot path sees. `Broker.metadata` is replaced only after that, so no client is sent to a partition that is not open
yet. Changes are followed one at a time, and always to the newest state.

A log is deleted when its name belongs to another topic, or when a controller says so (`stop_replicas`); a partition
that is merely not mentioned any more stops being served.

What is kept of a partition that is not served is kept by topic id, or in its log, and goes with it. High watermarks
outlive the process in `replication-offset-checkpoint` of each log directory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import supervision
from ..config import TopicConfig
from ..coordination import NO_LEADER, ClusterState, PartitionRecord, TopicRecord
from ..delayed_produce import Purgatory
from ..fetch_sessions import Sessions
from ..internal_topics import OFFSETS_TOPIC
from ..log.checkpoints import TopicPartition
from ..log.directory import LogDirError
from ..log.log import Log
from ..log.manager import Found, Released
from ..metadata import Metadata
from ..partition import Partition, now_ms
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.schema import ZERO_UUID
from .fetcher import Fetcher
from .follower import Follower
from .isr import Isr
from .membership import Membership
from .throttle import Throttle, is_listed

if TYPE_CHECKING:
    from ..broker import Broker

log = logging.getLogger(__name__)


TopicIdPartition = tuple[uuid.UUID, int]


T = TypeVar("T")
RETRY_S = 1.0
"""Pause before a state that could not be followed is tried again."""
AT_ONCE = 100
"""Partitions that are begun or stopped in one turn of the loop."""


class ReplicaManager:
    """`Broker.replicas`. All calls are made on the loop."""

    wanted: ClusterState
    """What coordination said last."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._throttle = Throttle(lambda: broker.config.integer("follower.replication.throttled.rate"))
        self.partitions: dict[TopicPartition, Partition] = {}
        """What this broker leads."""
        self.followers: dict[TopicPartition, Follower] = {}
        self.unopened: dict[TopicPartition, str] = {}
        """Partitions that should be here and are not, and why: of topics that `follow` has followed last."""
        self._lost: set[TopicIdPartition] = set()
        """Those among them that are in a log directory which is offline."""
        self._removed: dict[TopicIdPartition, int] = {}
        """Deleted by the controller's word, though the last record has them here: leader epoch of it."""
        self.sessions = Sessions(broker)
        self.membership = Membership(broker)
        self._fetchers: dict[int, Fetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._following = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._strays: set[TopicPartition] = set()
        """Logs that belong to no topic, and that was said."""

    # Following coordination

    def changed(self, state: ClusterState) -> None:
        """To be called by coordination: starts `follow`. A caller that needs its end awaits `follow` itself."""
        self.wanted = state
        if self._catching_up is None:
            self._catching_up = supervision.keep("following", self._catch_up)

    async def _catch_up(self) -> None:
        state = None
        while state is not self.wanted:
            state = self.wanted
            await self.follow()
        self._catching_up = None

    async def follow(self) -> None:
        """Return when this broker does what coordination's present state says."""
        broker = self._broker
        async with self._following:
            state, before = self.wanted, broker.metadata.state
            if state is before:
                return
            broker.configs.follow(state.broker_configs)
            has_let_go = await self._let_go(state)
            changed = [
                topic
                for topic in state.topics.values()
                if before.topics.get(topic.name) is not topic
                or state.broker_configs is not before.broker_configs
            ]
            new = await self._follow_topics(changed)
            deleted = _deleted(before, state)
            self._forget(state, before, {*deleted.values()})
            await self._bring_up(new)
            broker.metadata = Metadata(state)
            if state.brokers is not before.brokers:
                self._follow_brokers(state)
            self._end_idle_fetchers()
        broker.configs.keep(state.topics)
        if deleted:
            broker.groups.forget_topics(deleted)
        if has_let_go:
            broker.own(supervision.run("deletions", asyncio.to_thread(broker.logs.remove_deleted)))

    async def _let_go(self, state: ClusterState) -> bool:
        """Stop serving partitions of topics that are gone; whether there were any."""
        gone = {
            (held.topic, held.index): held.topic_id
            for held in self.all()
            if _topic_id(state, held.topic) != held.topic_id
        }
        async for key in _in_turns(gone):
            await self._cut_ends(key)
            self._stop(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await self._delete([key for key in gone if key[0] in state.topics])
        return bool(gone)

    async def _delete(self, keys: Iterable[TopicPartition]) -> None:
        """Take logs away; before this returns, nothing else may be opened in their names."""
        await self._put_aside(self._broker.logs.release(keys))

    async def _put_aside(self, released: list[Released]) -> None:
        if released:
            await _to_its_end(asyncio.to_thread(self._broker.logs.put_aside, released))

    def _forget(self, state: ClusterState, before: ClusterState, deleted: Collection[uuid.UUID]) -> None:
        """Keep nothing of topics that are gone, or that have only the name of one that is there."""
        self._lost = {one for one in self._lost if one[0] not in deleted}
        self._removed = {one: of for one, of in self._removed.items() if one[0] not in deleted}
        for key in list(self.unopened):
            topic_id = _topic_id(state, key[0])
            if topic_id == ZERO_UUID or topic_id != _topic_id(before, key[0]):
                del self.unopened[key]

    async def _follow_topics(self, topics: Collection[TopicRecord]) -> list[tuple[TopicRecord, int]]:
        """Bring their partitions here up to date; returns those that have to be opened."""
        new = []
        partitions = [(topic, index) for topic in topics for index in range(len(topic.partitions))]
        for topic in topics:
            if topic.name == OFFSETS_TOPIC:
                self._broker.groups.has_partitions(len(topic.partitions))
        async for topic, index in _in_turns(partitions):
            key = topic.name, index
            await self._cut_ends(key)
            if self._broker.broker_id not in (replicas := topic.partitions[index].replicas):
                self._stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if replicas and key not in self.unopened:  # it was never here
                    self._lost.discard((topic.topic_id, index))
                if not self._is_lost(topic, index):  # else it cannot be deleted yet
                    self.unopened.pop(key, None)
            elif (held := self._held(key)) is not None:
                self._assume(topic, index, held.log)
            elif not self._was_removed(topic, index):
                new.append((topic, index))
        return new

    def _was_removed(self, topic: TopicRecord, index: int) -> bool:
        key = topic.topic_id, index
        epoch = self._removed.get(key)
        if epoch is not None and topic.partitions[index].leader_epoch > epoch:
            del self._removed[key]
        return key in self._removed

    def _follow_brokers(self, state: ClusterState) -> None:
        alive = frozenset(state.brokers)
        for partition in list(self.partitions.values()):
            if partition.isr is not None:
                partition.isr.set_alive(alive)
                partition.isr_changed()
        self.sessions.forget(state.brokers)
        for fetcher in self._fetchers.values():
            fetcher.wake()

    # Leading and following

    def _assume(self, topic: TopicRecord, index: int, opened: Log) -> None:
        """Lead or follow, as the topic's record says."""
        config = self._broker.configs.of(topic)
        opened.config = self._broker.configs.of_logs(topic)
        if topic.partitions[index].leader == self._broker.broker_id:
            self._lead(topic, index, opened, config)
        else:
            self._follow_leader(topic, index, opened)
            replicas = cast(list[str], config["follower.replication.throttled.replicas"])
            throttled = is_listed(replicas, index, self._broker.broker_id)
            self.followers[topic.name, index].is_throttled = throttled

    def _lead(self, topic: TopicRecord, index: int, opened: Log, config: TopicConfig) -> None:
        key, record = (topic.name, index), topic.partitions[index]
        partition = self.partitions.get(key)
        if partition is not None:
            if record is not partition.record:
                joined = partition.isr is None and len(record.replicas) > 1
                isr = self._isr(record, opened, partition.high_watermark, config) if joined else None
                partition.lead(record, isr)
            partition.configure(config)
            return
        high_watermark, waiting = opened.last_high_watermark, None
        if (follower := self.followers.pop(key, None)) is not None:
            self._unassign(follower)
            high_watermark, waiting = follower.high_watermark, follower.step_up()
        isr = None
        if len(record.replicas) > 1:
            opened.assign_leader_epoch(record.leader_epoch)
            isr = self._isr(record, opened, max(high_watermark, opened.log_start_offset), config)
        queue = self._broker.admissions
        self.partitions[key] = Partition(topic, index, opened, config, queue, isr, self._unwritable, waiting)
        if topic.name == OFFSETS_TOPIC:
            self._broker.groups.lead(index)

    def _unwritable(self) -> None:
        """Have others lead what this broker leads, where there are others."""
        self._broker.cluster.cannot_write()

    def _isr(self, record: PartitionRecord, opened: Log, high_watermark: int, config: TopicConfig) -> Isr:
        return Isr(
            self._broker.broker_id,
            record,
            log_end=opened.log_end_offset,
            high_watermark=high_watermark,
            min_isr=config.integer("min.insync.replicas"),
            max_lag_ms=self._broker.config.integer("replica.lag.time.max.ms"),
            alive=self.wanted.brokers,
            now_ms=now_ms(),
        )

    def _follow_leader(self, topic: TopicRecord, index: int, opened: Log) -> None:
        key, record = (topic.name, index), topic.partitions[index]
        follower = self.followers.get(key)
        if follower is not None:
            was = follower.record
            if (was.leader, was.leader_epoch) == (record.leader, record.leader_epoch):
                follower.follow(record)
                return
            self._unassign(follower)
            follower.follow(record)
        else:
            high_watermark, waiting = opened.last_high_watermark, Purgatory()
            if (led := self.partitions.get(key)) is not None:
                high_watermark, waiting = led.high_watermark, led.step_down()
                self._stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            follower = self.followers[key] = Follower(topic, index, opened, high_watermark, waiting)
        self._assign(follower)

    def _assign(self, follower: Follower) -> None:
        leader = follower.record.leader
        if leader == NO_LEADER:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            broker = self._broker
            fetcher = Fetcher(
                broker.cluster.peers,
                leader,
                broker.config,
                lambda: self.wanted.brokers.get(leader),
                self._throttle,
            )
            self._fetchers[leader] = fetcher
            fetcher.start()
        fetcher.add(follower)

    def _unassign(self, follower: Follower) -> None:
        if (fetcher := self._fetchers.get(follower.record.leader)) is not None:
            fetcher.remove(follower.key)

    def _end_idle_fetchers(self) -> None:
        for leader in [leader for leader, fetcher in self._fetchers.items() if not len(fetcher)]:
            closing = supervision.run("fetcher's end", self._fetchers.pop(leader).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _cut_ends(self, key: TopicPartition) -> None:
        """Return when no follower's log is being cut: its role may change in this turn of the loop."""
        while (follower := self.followers.get(key)) is not None and follower.cutting is not None:
            await asyncio.wait([follower.cutting])

    def _stop(self, key: TopicPartition, code: ErrorCode) -> None:
        """Neither lead nor follow; the log stays."""
        if (follower := self.followers.pop(key, None)) is not None:
            self._unassign(follower)
            follower.log.last_high_watermark = follower.high_watermark
            follower.release(code)
        if (partition := self.partitions.pop(key, None)) is not None:
            partition.log.last_high_watermark = partition.high_watermark
            partition.release(code)
            if key[0] == OFFSETS_TOPIC:
                self._broker.groups.resign(key[1])

    async def stop_replicas(
        self, stops: Iterable[tuple[str, int, int, bool]]
    ) -> dict[TopicPartition, ErrorCode]:
        """A controller says to stop these: topic, partition, leader epoch (below 0: any), and whether to delete."""
        errors: dict[TopicPartition, ErrorCode] = {}
        deleted: list[TopicPartition] = []
        async with self._following:
            async for topic, index, epoch, delete in _in_turns(stops):
                key = topic, index
                held = self._held(key)
                if held is not None and 0 <= epoch < held.record.leader_epoch:
                    errors[key] = ErrorCode.FENCED_LEADER_EPOCH
                    continue
                errors[key] = ErrorCode.NONE
                await self._cut_ends(key)
                self._stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if delete:
                    if held is not None and self._broker.broker_id in held.record.replicas:
                        self._removed[held.topic_id, index] = held.record.leader_epoch
                    if key in self.unopened:
                        errors[key] = ErrorCode.KAFKA_STORAGE_ERROR
                    deleted.append(key)
            await self._delete(deleted)
            self._end_idle_fetchers()
        removal = asyncio.to_thread(self._broker.logs.remove_deleted)
        self._broker.own(supervision.run("deletions", removal))
        return errors

    def known_record(self, partition: Partition) -> PartitionRecord | None:
        """What coordination said last of a partition."""
        if self.topic_id(partition.topic) != partition.topic_id:
            return None
        records = self.wanted.topics[partition.topic].partitions
        return records[partition.index] if partition.index < len(records) else None

    # Opening

    async def open_missing(self) -> None:
        """Try again to open what could not be opened: there may be space now."""
        async with self._following:
            topics = self._broker.metadata.topics
            missing = [(topics[name], index) for name, index in self.unopened if name in topics]
            await self._bring_up([one for one in missing if not self._is_lost(*one)])

    async def _bring_up(self, new: list[tuple[TopicRecord, int]]) -> None:
        """Open or create the logs of these partitions; those where it fails are offline."""
        if not new:
            return
        logs = self._broker.logs
        older = [
            log
            for topic, index in new
            for log in logs.release_others((topic.name, index), (None, topic.topic_id).__contains__)
        ]
        if older:
            await self._put_aside(older)
            self._broker.own(supervision.run("deletions", asyncio.to_thread(logs.remove_deleted)))
        failed = await self._open_in_thread(new)
        async for topic, index in _in_turns(new):
            key = topic.name, index
            if (reason := failed.get(key)) is not None:
                if self.unopened.get(key) != reason:
                    log.error("%s-%d is offline: %s", *key, reason)
                self.unopened[key] = reason
                continue
            self.unopened.pop(key, None)
            if self._is_lost(topic, index):  # its directory failed just before another one got an empty log
                await self._delete([key])
            opened = logs.get(*key)
            if opened is None:  # its directory has failed meanwhile
                self._lost.add((topic.topic_id, index))
                self.unopened[key] = "its log directory is offline"
                continue
            self._assume(topic, index, opened)

    async def _open_in_thread(self, new: list[tuple[TopicRecord, int]]) -> dict[TopicPartition, str]:
        """See `_open`."""
        cancelled = threading.Event()
        return await _to_its_end(asyncio.to_thread(self._open, new, cancelled), cancelled.set)

    def _open(
        self, new: list[tuple[TopicRecord, int]], cancelled: threading.Event
    ) -> dict[TopicPartition, str]:
        """In a thread, until it is cancelled; returns why which could not be opened."""
        failed: dict[TopicPartition, str] = {}
        logs = self._broker.logs
        for topic, index in new:
            if cancelled.is_set():
                return failed
            try:
                if self._is_lost(topic, index):
                    raise LogDirError(f"its log directory is offline: {', '.join(map(str, logs.offline))}")
                logs.get_or_create(topic.name, index, topic.topic_id)
            except LogDirError as error:
                failed[topic.name, index] = str(error)
        return failed

    def lose(self, logs: Iterable[Found], reason: str) -> None:
        """The directory of these logs has failed: from now on it is as if it had been away at the start.

        So it is for logs that are not served yet: `follow` must not make them anew in another directory.
        """
        for one in logs:
            key = one.topic, one.partition
            held = self._held(key)
            if held is None:
                self._lost.add((one.topic_id or self.topic_id(one.topic), one.partition))
            else:
                self._lost.add((held.topic_id, one.partition))
                self.unopened[key] = reason
                self._stop(key, ErrorCode.KAFKA_STORAGE_ERROR)

    def find_lost(self) -> None:
        """Partitions that are not in the directories we have must be in those we have not: never made anew.

        Of some it is not told yet whose they are (`controller.machine`, `may_tell`).
        """
        for topic in self.wanted.topics.values():
            for index, record in enumerate(topic.partitions):
                here = self._broker.logs.get(topic.name, index)
                is_here = here is not None and here.topic_id in (None, topic.topic_id)
                is_ours = not record.replicas or self._broker.broker_id in record.replicas
                if is_ours and not is_here:
                    self._lost.add((topic.topic_id, index))

    def _is_lost(self, topic: TopicRecord, index: int) -> bool:
        return (topic.topic_id, index) in self._lost

    def report_strays(self) -> None:
        """Say which logs belong to no topic, as when their topic was deleted while their disk was away."""
        topics = self.wanted.topics
        strays = {key for key, _ in self._broker.logs.logs() if key[0] not in topics}
        for key in sorted(strays - self._strays):
            log.warning("the log %s-%d belongs to no topic: left alone", *key)
        self._strays = strays

    # What handlers ask

    def topic_id(self, name: str) -> uuid.UUID:
        """Of the topic that has the name by coordination's newest word; ZERO_UUID where it knows none."""
        return _topic_id(self.wanted, name)

    def why_not_led(self, topic: str, index: int) -> ApiError:
        """For a partition that is not among those that this broker leads."""
        if (reason := self.unopened.get((topic, index))) is not None:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        record = self._broker.metadata.topics.get(topic)
        if (
            record is None
            or record.topic_id != self.topic_id(topic)
            or not 0 <= index < len(record.partitions)
        ):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def is_offline(self, key: TopicPartition) -> bool:
        """Whether a replica that should be here cannot be used."""
        held = self._held(key)
        return key in self.unopened if held is None else held.log.offline is not None

    def get(self, key: TopicPartition) -> Partition | Follower:
        """A replica here, led or followed. Raises ApiError."""
        held = self._held(key)
        if held is None:
            raise self.why_not_led(*key)
        return held

    def _held(self, key: TopicPartition) -> Partition | Follower | None:
        return self.partitions.get(key) or self.followers.get(key)

    def all(self) -> Iterator[Partition | Follower]:
        """Every replica here, led or followed."""
        yield from self.partitions.values()
        yield from self.followers.values()

    def lag(self, held: Partition | Follower) -> int:
        """Records that a follower is known to lack of those that are committed, as KIP-113 has it."""
        return max(0, held.high_watermark - held.log.log_end_offset)

    def offline_count(self) -> int:
        return len(self.unopened) + sum(one.log.offline is not None for one in self.all())

    # High watermarks

    def high_watermark(self, key: TopicPartition) -> int:
        """Below it records are safe; 0 for what is not served."""
        held = self._held(key)
        return 0 if held is None else held.high_watermark

    async def keep_watermarks(self) -> None:
        """Write the high watermarks from time to time, until it is cancelled."""
        interval_s = self._broker.config.integer("replica.high.watermark.checkpoint.interval.ms") / 1000
        while True:
            await asyncio.sleep(max(interval_s, 0.01))
            await self.write_watermarks()

    async def write_watermarks(self) -> None:
        """Those of replicated partitions, in directories where any has changed."""
        held: dict[TopicPartition, Partition | Follower] = dict(self.followers)
        held.update((key, one) for key, one in self.partitions.items() if one.isr is not None)
        now = {key: (one.log.topic_id, one.high_watermark) for key, one in held.items()}
        await asyncio.to_thread(self._broker.logs.write_high_watermarks, now)

    async def close(self) -> None:
        """Follow and lead no more; the logs stay open."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()), *self._closing)
        for key in list(self.followers):
            await self._cut_ends(key)
        await self.membership.close()
        await self.write_watermarks()


def _topic_id(state: ClusterState, name: str) -> uuid.UUID:
    """Of the topic that has the name; ZERO_UUID without one."""
    topic = state.topics.get(name)
    return ZERO_UUID if topic is None else topic.topic_id


def _deleted(before: ClusterState, state: ClusterState) -> dict[str, uuid.UUID]:
    """Names and ids of the topics that were deleted, even if their names have been taken again."""
    return {
        name: topic.topic_id
        for name, topic in before.topics.items()
        if _topic_id(state, name) != topic.topic_id
    }


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of them; the loop gets a turn after every AT_ONCE."""
    for number, item in enumerate(items, 1):
        yield item
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


async def _to_its_end(work: Coroutine[Any, Any, T], cancel: Callable[[], None] = lambda: None) -> T:
    """What a thread does to logs. Ends after the thread though it is cancelled: nobody else may use them meanwhile."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        cancel()
        await asyncio.wait([working])
        raise
