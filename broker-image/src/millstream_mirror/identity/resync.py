"""Identity mode: makes existing ordinary topics of the target replicas of the source's topics (`spec.rejoin`).

This is the way back after a failover: the old source follows the new one from the last common offset. For each topic:

    1. compare both logs to see whether the topic can be resynced at all; then set `millstream.mirror.source=…/rejoin`:
       from now on nobody writes to it, neither clients nor a mirror
    2. wait until every broker of the target knows the setting. `millstream.mirror.rejoined` contains the request: after
       somebody promotes the topic or gives up, brokers refuse to let it rejoin under the same request
    3. for each partition: search for the last common offset (records/common_offset.py); copy the records after it,
       which only the target has, to TOPIC.set-aside, and await their acknowledgement (diverged_records.py); truncate
       the log at the common offset (MirrorTruncate); and wait until all replicas that may lead next have truncated
       theirs
    4. move positions of groups beyond the ends back to them
    5. note in the progress that it is a replica, and change `…/rejoin` to `…`: tasks continue it

Each step checks the present state and does what is missing, so a worker may be killed at any point. Only the leader of
the workers' group does this. If two workers do it, the target truncates a log only if it is as the sender saw it. A
topic is resynced once per request: if it is promoted later, it stays promoted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from millstream_kafka.client import ClusterClient
from millstream_kafka.mirror_source import KEY, REJOINED, MirrorSource, requests_of, with_request
from millstream_kafka.protocol import incremental_alter_configs
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream_kafka.protocol.metadata import MetadataResponseTopic
from millstream_kafka.protocol.mirror_truncate import TruncatedPartitionResponse
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..config.config import GROUP_PREFIX, SET_ASIDE_SUFFIX
from ..kafka.group_offsets import Position, commit, groups_in, positions_of
from ..kafka.progress import Progress, target_number
from ..kafka.topics import TOPIC_RESOURCE, configs_of, id_of
from ..partitions.assignment import TRANSIENT
from ..partitions.diverged_partition import DivergedPartition
from .diverged_records import LONGEST_NAME, CannotResync, DivergedRecords, Mark, Room
from .truncate import DELETE_IT, Both, Truncation, is_same_log

TOPICS_AT_ONCE = 4
PARTITIONS_AT_ONCE = 8
GROUPS_AT_ONCE = 16
RETRY_S = 2.0
KNOWN_CHECK_S, KNOWN_S = 0.05, 5.0
"""How often to check whether a broker knows a setting, and the time after which that is an error."""
SET, DELETE = 0, 1
GROUPS_TOPIC = "__consumer_offsets"

logger = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = Callable[[Mapping[TopicPartition, Progress]], Awaitable[None]]


class Resync:
    """Resyncs the topics of one source (`spec.rejoin`). Errors of a topic are in ``problems``; it retries."""

    def __init__(
        self,
        request_id: str,
        at_source: ClusterClient,
        at_target: ClusterClient,
        stamp: Stamp,
        leads: Callable[[], bool],
    ) -> None:
        """``stamp`` commits progress as a member of the group; ``leads`` tells whether this worker leads the group."""
        self._request_id = request_id
        self._at_source = at_source
        self._at_target = at_target
        self._stamp = stamp
        self._leads = leads
        self._diverged = DivergedRecords(at_target, request_id)
        self._truncation = Truncation(at_source, at_target, self._diverged)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running_for: dict[str, tuple[UUID, int]] = {}
        """Id and number of partitions of the source's topic for which a task runs."""
        self._topics_at_once = asyncio.Semaphore(TOPICS_AT_ONCE)
        self.problems: dict[str, str] = {}
        """The reason why a topic is not resynced, by name."""
        self.reports: dict[str, list[DivergedPartition]] = {}
        """Diverged records, by topic of the target, for the topics checked so far."""

    @property
    def diverged(self) -> list[DivergedPartition]:
        """Diverged records, of all topics."""
        return [partition for name in sorted(self.reports) for partition in self.reports[name]]

    async def close(self) -> None:
        await supervision.cancel(self._tasks.values())

    def want(self, topics: Mapping[str, MetadataResponseTopic]) -> None:
        """Resync these topics, by name in the target, and no others."""
        wanted = topics if self._leads() else {}
        running_for = {name: (topic.topic_id, len(topic.partitions)) for name, topic in wanted.items()}
        for name in [name for name in self._tasks if self._running_for.get(name) != running_for.get(name)]:
            self._tasks.pop(name).cancel()
        self._running_for = running_for
        self.problems = {name: problem for name, problem in self.problems.items() if name in wanted}
        for name, topic in wanted.items():
            if name not in self._tasks or self._tasks[name].done():
                self._tasks[name] = supervision.run("resync of topics", self._resync_until_done(name, topic))

    async def remember(self, topics: Mapping[str, str]) -> None:
        """Find the diverged records of these topics of the target (name to id), by this worker or another.

        Errors wait for the next round: they must not keep records from being mirrored."""
        if not self._leads():
            return
        self.reports = {name: found for name, found in self.reports.items() if name in topics}
        unknown = topics.keys() - self.reports.keys()
        with contextlib.suppress(*TRANSIENT):
            present = await self._diverged.partitions(sorted(unknown))
            for name in unknown:
                self.reports[name] = await self._marks(name, topics[name], present.get(name, 0))

    async def _marks(self, name: str, topic_id: str, partitions: int) -> list[DivergedPartition]:
        limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def last(partition: int) -> Mark | None:
            async with limit:
                return await self._diverged.last(name, partition)

        marks = await _all(last(partition) for partition in range(partitions))
        return [
            DivergedPartition(name, partition, mark.common, mark.number)
            for partition, mark in enumerate(marks)
            if mark is not None and mark.topic_id == topic_id
        ]

    async def _resync_until_done(self, name: str, topic: MetadataResponseTopic) -> None:
        while True:
            try:
                async with self._topics_at_once:
                    await self._resync_topic(name, topic)
                self.problems.pop(name, None)
                return
            except CannotResync as error:
                problem = f"topic {name}: {error}"
            except (*TRANSIENT, ValueError) as error:
                problem = f"topic {name}: rejoining: {error}"
            if self.problems.get(name) != problem:
                logger.warning("%s", problem)
            self.problems[name] = problem
            await asyncio.sleep(RETRY_S)

    async def _resync_topic(self, name: str, topic: MetadataResponseTopic) -> None:
        """Raises CannotResync, BrokerError, ApiError."""
        source = MirrorSource(self._at_source.cluster_id or "", topic.topic_id, rejoins=True)
        (there,) = (await self._at_target.metadata([name])).topics
        if there.error_code:
            raise ApiError(ErrorCode.of(there.error_code), f"topic {name} in the target")
        both = Both(name, id_of(there), source, topic.name or "", len(there.partitions))
        ours = await configs_of(self._at_target, name)
        if ours.get(KEY) == str(source._replace(rejoins=False)):
            return
        is_new, rejoined = not ours.get(KEY), requests_of(ours.get(REJOINED))
        if is_new and self._request_id in rejoined:
            raise CannotResync(
                "was promoted or given up under this request before, and is left alone: exclude it, or change"
                " spec.rejoin.requestId to make it a replica again"
            )
        theirs = await configs_of(self._at_source, both.source_topic)
        _check(both, len(topic.partitions), ours, theirs)
        request = with_request(ours.get(REJOINED), self._request_id)
        if is_new:
            for partition in range(both.partitions):  # before producers lose the topic
                await self._truncation.check(both, partition)
            logger.info("topic %s: rejoins topic %s of the source: read-only from now on", name, topic.name)
            await self._set(name, {KEY: str(source), REJOINED: request})
        elif rejoined[:1] != (self._request_id,):  # another request had begun
            await self._set(name, {REJOINED: request})
        await self._await_all_brokers(both)
        await self._check_source(both, is_new=is_new)
        await self._check_coordinators()
        replicas = max(len(partition.replica_nodes) for partition in there.partitions)
        room = Room(both.partitions, replicas, int(ours.get("max.message.bytes") or 1 << 20))
        limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def join(partition: int) -> TruncatedPartitionResponse:
            async with limit:
                return await self._truncation.join(both, partition, room)

        ends = await _all(join(partition) for partition in range(both.partitions))
        await self._lower_positions(name, [end.log_end_offset for end in ends])
        self.reports[name] = await self._marks(
            name, both.topic_id, (await self._diverged.partitions([name])).get(name, 0)
        )
        await self._stamp({(name, end.index): self._progress(both, end.log_end_offset) for end in ends})
        for before in ends:
            now = await self._truncation.report(both, before.index)
            if not now.in_sync or not is_same_log(now, before):
                raise CannotResync(f"partition {before.index} has changed: comparing the logs again")
        await self._check_source(both, is_new=False)
        await self._set(name, {KEY: str(source._replace(rejoins=False))})
        shown = ", ".join(f"{end.index}: {end.log_end_offset}" for end in ends)
        logger.info("topic %s: now a replica of the source's from these offsets: %s", name, shown)

    def _progress(self, both: Both, offset: int) -> Progress:
        return Progress(
            offset,
            target_number(both.topic_id),
            0,
            0,
            offset,
            str(both.source.topic_id),
            both.source.cluster_id,
            int(time.time() * 1000),
            first=0,
            is_new=True,
        )

    async def _check_source(self, both: Both, *, is_new: bool) -> None:
        """Raise CannotResync if the source's topic becomes a replica, too: each would wait for the other's records.

        Each mirror reads the other's topic once its own is read-only, so at least one sees that.
        ``is_new``: nothing was truncated, so the target's topic becomes writable again.
        """
        await self._at_source.metadata([])
        deadline = time.monotonic() + KNOWN_S
        for node in list(self._at_source.brokers):
            while theirs := (await configs_of(self._at_source, both.source_topic, node)).get(KEY):
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(KNOWN_CHECK_S)  # the broker may not know yet that it was promoted
            if not theirs:
                continue
            if is_new:
                await self._set(both.name, {KEY: None})
            raise CannotResync(
                f"in the source it becomes a read-only mirror, of {theirs}, at the same time: remove one of the two"
                " MirrorMakers, and change spec.rejoin.requestId of the other"
            )

    async def _check_coordinators(self) -> None:
        """Raise CannotResync if groups are not listed, whose positions may be beyond the new end."""
        for topic in (await self._at_target.metadata([GROUPS_TOPIC])).topics:
            lost = [partition.partition_index for partition in topic.partitions if partition.leader_id < 0]
            if lost and not topic.error_code:
                raise CannotResync(
                    f"{GROUPS_TOPIC}-{lost[0]} in the target has no leader, so the positions of its groups are not"
                    " known: start its brokers"
                )

    async def _set(self, name: str, settings: Mapping[str, str | None]) -> None:
        """None deletes a setting."""
        changes = [
            AlterableConfig(key, DELETE if value is None else SET, value) for key, value in settings.items()
        ]
        config = AlterConfigsResource(TOPIC_RESOURCE, name, changes)
        request = IncrementalAlterConfigsRequest([config])
        (answer,) = (await self._at_target.call_any(incremental_alter_configs.API, request)).responses
        if answer.error_code:
            error = ErrorCode.of(answer.error_code)
            shown = ", ".join(f"{key}={value or ''}" for key, value in settings.items())
            raise ApiError(error, f"setting {shown}: {answer.error_message or error.message}")

    async def _await_all_brokers(self, both: Both) -> None:
        """Wait until no broker of the target accepts clients' records. Raises BrokerError, ApiError, CannotResync."""
        await self._at_target.metadata([])
        deadline = time.monotonic() + KNOWN_S
        for node in list(self._at_target.brokers):
            while (await configs_of(self._at_target, both.name, node)).get(KEY) != str(both.source):
                if time.monotonic() > deadline:
                    raise CannotResync(f"broker {node} does not know that it is read-only: waiting for it")
                await asyncio.sleep(KNOWN_CHECK_S)

    # ---- groups

    async def _lower_positions(self, name: str, ends: Sequence[int]) -> None:
        """Move positions beyond the ends back to them, because other records will have these offsets.

        Otherwise a group would skip the source's records there. Raises BrokerError, ApiError, CannotResync.
        """
        await self._at_target.metadata([])
        limit = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def lower(group: str) -> None:
            async with limit:
                found = await positions_of(self._at_target, group)
                wanted = {
                    (name, partition): Position(end, found[name, partition].metadata)
                    for partition, end in enumerate(ends)
                    if (name, partition) in found and found[name, partition].offset > end
                }
                if not wanted:
                    return
                for (_, partition), error in (await commit(self._at_target, group, wanted)).items():
                    if error is not ErrorCode.NONE:
                        raise CannotResync(
                            f"group {group} has a position behind the end of partition {partition}, and it cannot be"
                            f" moved: {error.message}: stop the group's consumers in the target"
                        )
                logger.warning("group %s: positions in topic %s moved back to its end", group, name)

        groups = [group.group_id for group in await groups_in(self._at_target)]
        await _all(lower(group) for group in groups if not group.startswith(GROUP_PREFIX))


def _check(both: Both, source_partitions: int, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Raise CannotResync for topics that cannot be compared, or whose diverged records could not be copied."""
    if theirs.get(KEY):
        raise CannotResync(
            f"in the source it is itself a read-only mirror, of {theirs[KEY]}: promote it there first"
        )
    if len(both.name) + len(SET_ASIDE_SUFFIX) > LONGEST_NAME:
        raise CannotResync(
            f"its name is longer than {LONGEST_NAME - len(SET_ASIDE_SUFFIX)} characters, so there is no name for"
            f" a topic for diverged records: {DELETE_IT}"
        )
    if both.partitions > source_partitions:
        raise CannotResync(
            f"it has {both.partitions} partitions in the target and {source_partitions} in the source: {DELETE_IT}"
        )
    for side, config in (("target", ours), ("source", theirs)):
        if "compact" in config.get("cleanup.policy", ""):
            raise CannotResync(
                f"it is compacted (cleanup.policy={config['cleanup.policy']} in the {side}), so batches of equal logs"
                f" may differ: {DELETE_IT}"
            )


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Await all of them to the end; raises the first error."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
