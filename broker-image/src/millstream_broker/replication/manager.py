"""Applies coordination's state to the replicas on this broker: which it leads, and which it follows.

`follow` brings the `Replicas` to coordination's state. A partition has a log here while this broker is
among its replicas, and leads or follows (`roles`). Changes are applied one at a time, and always to the newest
state.

A log is deleted only if a controller requests it for its topic id (`stop_replicas`). A partition that is merely no
longer mentioned stops being served. A log whose name belongs to another topic, or that fits nothing in coordination
(`settle_strays`), becomes a stray (`log.strays`).

State of a partition that is not served is kept by topic id, or in its log, and deleted with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from time import time
from typing import Any, TypeVar

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.protocol.stop_replica import EPOCH_DURING_DELETE
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..config.config import BrokerConfig
from ..coordination import NO_LEADER, ClusterState, TopicRecord
from ..log.directory import LogDirError
from ..log.manager import Found, LogManager, Released
from ..metadata.cache import Metadata
from ..metadata.effective_configs import EffectiveConfigs
from ..runtime.slices import cooperatively
from ..runtime.steps import portions
from ..security.mechanisms.inter_broker import InterBroker
from .append_queue import AppendQueue
from .fetch_sessions import Sessions
from .fetcher_manager import ReplicaFetcherManager
from .follower import Follower
from .high_watermarks import HighWatermarks
from .lost_logs import LostLogs
from .partition import Partition, now_ms
from .replicas import Replicas, topic_id
from .roles import Coordinator, Roles
from .stops import Stop, may_delete, must_keep

TopicIdPartition = tuple[uuid.UUID, int]
KnownTopics = Callable[[Collection[str]], Awaitable[Mapping[str, TopicRecord | None]]]
"""Stored topics by name; None for one that does not exist; none for one that cannot be read."""
T = TypeVar("T")
RETRY_S = 1.0
"""Pause before retrying a state that could not be applied."""
AT_ONCE = 100
"""Partitions checked for removal in one turn of the loop."""
MANY = 1000
"""Number of partitions that the garbage collector takes long to scan: a millisecond for fifty."""

log = logging.getLogger(__name__)


class ReplicaManager:
    """Brings `Replicas` to coordination's state. All calls are made on the loop."""

    def __init__(
        self,
        replicas: Replicas,
        logs: LogManager,
        config: BrokerConfig,
        configs: EffectiveConfigs,
        *,
        peers: InterBroker,
        sessions: Sessions,
        append_queue: AppendQueue,
        coordinators: Mapping[str, Coordinator],
        unwritable: Callable[[], None],
        raise_epoch: Callable[[Partition, int, int], None],
    ) -> None:
        """`coordinators` are those on this broker, by internal topic.

        `unwritable` is called if records cannot be written here, to move leadership away.

        `raise_epoch` is called if a leader needs a higher leader epoch.
        """
        self._replicas = replicas
        self._logs = logs
        self._config = config
        self._configs = configs
        self._sessions = sessions
        self._coordinators = coordinators
        self.lost = LostLogs(replicas, logs)
        self.watermarks = HighWatermarks(replicas, logs, config)
        self._removed: dict[TopicIdPartition, int] = {}
        """Deleted on the controller's request although the last record has them here; values: its leader epochs."""
        self._fetchers = ReplicaFetcherManager(replicas, config, peers)
        self._roles = Roles(
            replicas,
            config,
            configs,
            fetchers=self._fetchers,
            append_queue=append_queue,
            coordinators=coordinators,
            unwritable=unwritable,
            raise_epoch=raise_epoch,
            differs=self._differs,
        )
        self._removals = supervision.Tasks()
        self._following = asyncio.Lock()
        self._is_closed = False
        self._catching_up: asyncio.Task[None] | None = None
        self._unsettled = 0
        """Number of opened partitions that the garbage collector still scans."""

    # Following coordination

    def changed(self, state: ClusterState) -> None:
        """Start `follow`; coordination calls it. `Replicas.caught_up` waits for its end."""
        self._replicas.receive_image(state)
        if self._catching_up is None:
            self._catching_up = supervision.keep("following", self._catch_up, pause_s=RETRY_S)

    async def _catch_up(self) -> None:
        while self._replicas.is_behind:
            await self.follow()
        self._catching_up = None

    async def follow(self) -> None:
        """Return when this broker has applied coordination's current state."""
        async with self._following:
            (state, version), before = self._replicas.latest, self._replicas.metadata.state
            if state is before:
                self._replicas.applied(version)
                return
            self._configs.follow(state.broker_configs)
            has_stopped = await self._stop_deleted(state)
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
            self._replicas.metadata = Metadata(state, self._replicas.metadata)
            if state.brokers is not before.brokers:
                await self._follow_brokers(state)
            self._fetchers.end_idle()
            self._configs.keep(state.topics)
            self._replicas.applied(version)
        if deleted:
            for coordinator in self._coordinators.values():
                coordinator.on_topics_deleted(deleted)
        if has_stopped:
            self._remove_deleted()

    async def _stop_deleted(self, state: ClusterState) -> bool:
        """Stop serving partitions of deleted topics; returns whether there were any."""
        gone: dict[TopicPartition, uuid.UUID] = {}
        async for some in cooperatively(portions([*self._replicas.all()], AT_ONCE)):
            gone |= {
                (held.topic, held.index): held.topic_id
                for held in some
                if topic_id(state, held.topic) != held.topic_id
            }
        async for key in cooperatively(gone):
            await self._roles.truncation_ends(key)
            self._roles.stop(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        taken = [key for key in gone if key[0] in state.topics]
        await self._remove(taken, stray="belongs to another topic than the present one of that name")
        return bool(gone)

    async def _remove(
        self, keys: Iterable[TopicPartition], stray: str = "", *, is_replaced: bool = False
    ) -> None:
        """Delete logs, or make them strays; before this returns, no other log of these names may be opened."""
        for some in portions(keys, AT_ONCE):
            await self._put_aside(self._logs.release(some, stray, is_replaced=is_replaced))

    async def _put_aside(self, released: list[Released]) -> None:
        if released:
            await _to_its_end(asyncio.to_thread(self._logs.put_aside, released))

    def _forget(self, state: ClusterState, before: ClusterState, deleted: Collection[uuid.UUID]) -> None:
        """Forget deleted topics, including those whose names have been taken again."""
        self.lost.forget(deleted)
        self._removed = {key: epoch for key, epoch in self._removed.items() if key[0] not in deleted}
        for key in list(self._replicas.unopened):
            found = topic_id(state, key[0])
            if found == ZERO_UUID or found != topic_id(before, key[0]):
                del self._replicas.unopened[key]

    async def _follow_topics(self, topics: Collection[TopicRecord]) -> list[tuple[TopicRecord, int]]:
        """Update the local partitions of topics; returns those that must be opened."""
        new = []
        partitions = ((topic, index) for topic in topics for index in range(len(topic.partitions)))
        for topic in topics:
            if (coordinator := self._coordinators.get(topic.name)) is not None:
                coordinator.set_partition_count(len(topic.partitions))
        async for topic, index in cooperatively(partitions):
            key = topic.name, index
            await self._roles.truncation_ends(key)
            self._note(topic, index)
            if self._replicas.broker_id not in (replicas := topic.partitions[index].replicas):
                self._roles.stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if replicas and key not in self._replicas.unopened:  # it was never here
                    self.lost.discard(topic.topic_id, index)
                if not self.lost.includes(topic, index):  # otherwise it cannot be deleted yet
                    self._replicas.unopened.pop(key, None)
            elif (held := self._replicas.held(key)) is not None:
                self._roles.assume(topic, index, held.log)
            elif not self._was_removed(topic, index):
                self.lost.allow_copy(topic, index)
                if topic.partitions[index].leader != NO_LEADER or self.lost.has_log(topic, index):
                    new.append((topic, index))
        return new

    def _note(self, topic: TopicRecord, index: int) -> None:
        record = topic.partitions[index]
        if self._replicas.broker_id in record.replicas:
            self._logs.states.note(topic.name, topic.topic_id, index, record.leader_epoch, record.version)

    def _was_removed(self, topic: TopicRecord, index: int) -> bool:
        key = topic.topic_id, index
        epoch = self._removed.get(key)
        if epoch is not None and topic.partitions[index].leader_epoch > epoch:
            del self._removed[key]
        return key in self._removed

    async def _follow_brokers(self, state: ClusterState) -> None:
        alive = frozenset(state.brokers)
        async for partition in cooperatively(list(self._replicas.partitions.values())):
            if partition.isr is not None:
                partition.isr.set_alive(alive)
                partition.isr_changed()
        self._sessions.forget(state.brokers)
        self._fetchers.wake()

    # Logs that are replaced or truncated

    def _differs(self, follower: Follower) -> None:
        self._removals.add(supervision.run("strays", self._replace(follower)))

    async def _replace(self, follower: Follower) -> None:
        """The leader has another log than an unconfirmed one here: keep this one as a stray, and copy the leader's."""
        async with self._following:
            key, topic = follower.key, self._replicas.metadata.topics.get(follower.topic)
            is_current = self._replicas.followers.get(key) is follower
            if self._is_closed or not is_current or topic is None or topic.topic_id != follower.topic_id:
                return
            self._roles.stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            why = f"has other records than the log of broker {follower.record.leader}, the leader"
            await self._remove([key], why, is_replaced=True)
            await self._bring_up([(topic, follower.index)])

    async def truncate_led(
        self, key: TopicPartition, check: Callable[[Partition], None], offset: int
    ) -> None:
        """Truncate the log of a partition that this broker leads, and continue to lead it. Raises ApiError.

        `check` raises ApiError if truncation is not allowed; nothing happens between the check and the end of serving.
        To fetches it looks like a new leadership: followers compare their logs with this one.
        """
        async with self._following:
            if self._is_closed:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            partition = self._replicas.partition(*key)
            check(partition)
            topic, led, isr = self._replicas.metadata.topics.get(key[0]), partition.log, partition.isr
            if topic is None or topic.topic_id != partition.topic_id or key[1] >= len(topic.partitions):
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # a newer state is being applied
            before = led.log_end_offset
            self._roles.stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            led.truncating = True
            try:
                truncate = partial(led.truncate_led, offset, now_ms=int(time() * 1000))
                await _to_its_end(asyncio.to_thread(truncate))
                log.info(
                    "%s: truncated from offset %d to %d: it rejoins its source", partition, before, offset
                )
            finally:
                led.truncating = False
                led.last_high_watermark = min(led.last_high_watermark, led.log_end_offset)
                if self._logs.get(*key) is led:
                    if isr is not None:
                        isr.truncated(led.log_end_offset, now_ms())
                    self._roles.lead_on(partition, topic, isr)
                else:
                    self.lost.add(partition.topic_id, key[1])
                    self._replicas.unopened[key] = "its log directory is offline"

    async def stop_replicas(self, stops: Iterable[Stop]) -> dict[TopicPartition, ErrorCode]:
        """Stop replicas for a controller."""
        errors: dict[TopicPartition, ErrorCode] = {}
        deleted: list[TopicPartition] = []
        kept: list[TopicPartition] = []
        async with self._following:
            async for stop in cooperatively(stops):
                key = stop.topic, stop.partition
                held = self._replicas.held(key)
                errors[key] = ErrorCode.NONE
                if stop.delete and stop.leader_epoch == EPOCH_DURING_DELETE:
                    self._logs.delete_strays(stop.topic_id, stop.partition)
                if held is not None and held.topic_id != stop.topic_id:
                    log.warning(
                        "%s-%d: ignoring a request to stop it: it is for the topic id %s", *key, stop.topic_id
                    )
                    continue
                if held is not None and 0 <= stop.leader_epoch < held.record.leader_epoch:
                    errors[key] = ErrorCode.FENCED_LEADER_EPOCH
                    continue
                await self._roles.truncation_ends(key)
                self._roles.stop(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if stop.delete:
                    if held is not None and self._replicas.broker_id in held.record.replicas:
                        self._removed[held.topic_id, stop.partition] = held.record.leader_epoch
                    if key in self._replicas.unopened:
                        errors[key] = ErrorCode.KAFKA_STORAGE_ERROR
                    if may_delete(stop, self._logs):
                        (kept if must_keep(stop, self._logs, self._replicas.metadata) else deleted).append(
                            key
                        )
            await self._remove(deleted)
            await self._remove(
                kept, "may have records that nobody else has, although its replica was removed"
            )
            self._fetchers.end_idle()
        self._remove_deleted()
        return errors

    def _remove_deleted(self) -> None:
        self._removals.add(supervision.run("deletions", asyncio.to_thread(self._logs.remove_deleted)))

    # Opening

    async def open_missing(self) -> None:
        """Retry opening logs: there may be space now."""
        async with self._following:
            topics = self._replicas.metadata.topics
            missing = [(topics[name], index) for name, index in self._replicas.unopened if name in topics]
            await self._bring_up([partition for partition in missing if not self.lost.includes(*partition)])

    async def _bring_up(self, new: list[tuple[TopicRecord, int]]) -> None:
        """Open or create the logs of these partitions; those where it fails are offline."""
        if not new:
            return
        logs = self._logs
        older = [
            log
            async for topic, index in cooperatively(new)
            for log in logs.release_others((topic.name, index), (None, topic.topic_id).__contains__)
        ]
        if older:
            await self._put_aside(older)
            self._remove_deleted()
        failed = await self._open_in_thread(new)
        async for topic, index in cooperatively(new):
            key = topic.name, index
            if (reason := failed.get(key)) is not None:
                if self._replicas.unopened.get(key) != reason:
                    log.error("%s-%d is offline: %s", *key, reason)
                self._replicas.unopened[key] = reason
                continue
            self._replicas.unopened.pop(key, None)
            if self.lost.includes(topic, index):  # its directory failed just before another got an empty log
                made = logs.get(*key)
                is_empty = made is None or not made.log_end_offset
                await self._remove([key], stray="" if is_empty else "is not the log that was in use")
            opened = logs.get(*key)
            if opened is None:  # its directory has failed meanwhile
                self.lost.add(topic.topic_id, index)
                self._replicas.unopened[key] = "its log directory is offline"
                continue
            self._roles.assume(topic, index, opened)
        self._settle(len(new))

    def _settle(self, opened: int) -> None:
        """Exclude lasting objects from garbage collection: a pass over 10,000 partitions takes a fifth of a second.

        Deleted partitions are still freed, because they are in no reference cycle.
        """
        self._unsettled += opened
        if self._unsettled >= MANY:
            self._unsettled = 0
            gc.collect(1)  # collect present garbage, as far as that takes no time
            gc.freeze()

    async def _open_in_thread(self, new: list[tuple[TopicRecord, int]]) -> dict[TopicPartition, str]:
        """See `_open`."""
        cancelled = threading.Event()
        return await _to_its_end(asyncio.to_thread(self._open, new, cancelled), cancelled.set)

    def _open(
        self, new: list[tuple[TopicRecord, int]], cancelled: threading.Event
    ) -> dict[TopicPartition, str]:
        """In a thread, until it is cancelled; returns the errors of those that could not be opened."""
        failed: dict[TopicPartition, str] = {}
        logs = self._logs
        for topic, index in new:
            if cancelled.is_set():
                return failed
            try:
                if self.lost.includes(topic, index):
                    raise LogDirError(self.lost.reason(topic, index))
                logs.get_or_create(topic.name, index, topic.topic_id)
            except LogDirError as error:
                failed[topic.name, index] = str(error)
        return failed

    def lose(self, logs: Iterable[Found], reason: str) -> None:
        """The directory of these logs has failed: treat it as if it had been missing at the start.

        This covers logs that are not served yet, too: `follow` must not recreate them in another directory.
        """
        for found in logs:
            key = found.topic, found.partition
            held = self._replicas.held(key)
            if held is None:
                self.lost.add(found.topic_id or self._replicas.topic_id(found.topic), found.partition)
            else:
                self.lost.add(held.topic_id, found.partition)
                self._replicas.unopened[key] = reason
                self._roles.stop(key, ErrorCode.KAFKA_STORAGE_ERROR)

    async def settle_strays(self, known: KnownTopics) -> None:
        """Make strays of the logs that fit nothing in coordination. Raises CoordinationError.

        `known` reads topics as they are stored. What this broker has been told is not enough: it may not know all yet.
        """
        unserved = {
            key: found.topic_id
            for key, found in self._logs.logs()
            if self._replicas.held(key) is None and found.topic_id is not None
        }
        missing = dict(self._logs.inventory.missing)
        names = {name for name, _ in unserved} | {place.topic for place in missing.values()}
        topics = await known(names) if names else {}
        for (of_topic, index), place in missing.items():
            if self.lost.misfit((place.topic, index), of_topic, topics):  # nobody misses it any more
                self._logs.inventory.remove(of_topic, index)
                self.lost.discard(of_topic, index)
        strays = {
            key: why for key, of_topic in unserved.items() if (why := self.lost.misfit(key, of_topic, topics))
        }
        async with self._following:
            for key, why in strays.items():
                found = self._logs.get(*key)
                if found is not None and found.topic_id == unserved[key] and self._replicas.held(key) is None:
                    await self._remove([key], why)
        await asyncio.to_thread(self._logs.strays.refresh)

    async def close(self) -> None:
        """Stop following and leading, after a running truncation; the logs stay open."""
        async with self._following:
            self._is_closed = True
        if self._catching_up is not None:
            await supervision.cancel([self._catching_up])
        await self._fetchers.close()
        for key in list(self._replicas.followers):
            await self._roles.truncation_ends(key)
        await self._removals.ended()
        await self._roles.starts.close()
        await self.watermarks.write()


def _deleted(before: ClusterState, state: ClusterState) -> dict[str, uuid.UUID]:
    """Names and ids of the topics that were deleted, even if their names have been taken again."""
    return {
        name: topic.topic_id
        for name, topic in before.topics.items()
        if topic_id(state, name) != topic.topic_id
    }


async def _to_its_end(work: Coroutine[Any, Any, T], cancel: Callable[[], None] = lambda: None) -> T:
    """Wait for a thread that works on logs, however often it is cancelled: nothing else may use them meanwhile."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        cancel()
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        raise
