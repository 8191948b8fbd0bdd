"""The controller's requests to brokers: UpdateMetadata and StopReplica, to all in parallel, repeated until there is a
response. To find the most complete log it sends ListOffsets, as a debugging replica.

Each broker has a set of waiting partitions, not a queue of requests: it gets their state as of the time of sending. One
request to a broker is in flight at a time; metadata goes before StopReplica. A request without a response is repeated,
after a growing pause, as long as this incarnation of the broker lives. A broker that reports a newer controller ends
this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from itertools import chain, islice
from typing import Protocol
from uuid import UUID

from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import list_offsets, stop_replica, update_metadata
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.list_offsets import (
    DEBUGGING_REPLICA_ID,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millstream_kafka.protocol.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from millstream_kafka.protocol.update_metadata import (
    LEADER_DURING_DELETE,
    SECURITY_PROTOCOLS,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..config.config import Listener
from ..coordination import NO_LEADER, NO_STATE, BrokerRecord, PartitionRecord, TopicRecord
from ..runtime.slices import begin, cooperatively, finish, yield_to_others
from ..runtime.steps import Steps
from ..topic_rules.internal_topics import is_internal
from .messages import AskLogEnds, LogEnd, LogEnds, Push, Stopped, StopReplicas
from .reach import Caller, Reach

MAX_PARTITIONS = 2_000
"""Partitions in one request, which takes some milliseconds to encode and to apply (`coordination.view`)."""
PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
PATIENCE_S = 30.0

log = logging.getLogger(__name__)


class ControllerContext(Protocol):
    """The source of the updates: the controller's machine."""

    epoch: int
    brokers: dict[int, BrokerRecord]
    topics: dict[str, TopicRecord]
    records: dict[TopicPartition, PartitionRecord]

    def announced_brokers(self) -> list[BrokerRecord]: ...

    def is_deleting(self, topic: str) -> bool: ...

    def is_undecided(self, key: TopicPartition) -> bool: ...

    def may_announce(self, key: TopicPartition) -> bool: ...

    def to_delete(self, broker: int, among: Set[TopicPartition]) -> dict[TopicPartition, int]: ...


class Channels:
    """One channel for each incarnation of a broker. All is called on the loop."""

    def __init__(
        self,
        controller_id: int,
        reach: Reach,
        cluster: ControllerContext,
        rest: Callable[[], Awaitable[None]],
        answered: Callable[[Stopped | LogEnds], None],
        deposed: Callable[[], None],
    ) -> None:
        self.controller_id = controller_id
        self.reach = reach
        self.cluster = cluster
        self.rest = rest
        """Returns once `cluster` is consistent: no event is being handled."""
        self.answered = answered
        self.deposed = deposed
        self._channels: dict[int, Channel] = {}

    def push(self, push: Push) -> None:
        for broker in push.brokers:
            if (channel := self._channel(broker)) is not None:
                channel.push(push.partitions)

    def stop(self, stop: StopReplicas) -> None:
        if (channel := self._channel(stop.broker)) is not None:
            channel.stop(stop.partitions, stop.delete)

    def ask(self, ask: AskLogEnds) -> None:
        if (channel := self._channel(ask.broker)) is not None:
            channel.ask(ask.partitions)

    def _channel(self, broker: int) -> Channel | None:
        """The channel to the broker's present registration."""
        record = self.cluster.brokers.get(broker)
        channel = self._channels.get(broker)
        if channel is not None and (record is None or channel.broker_epoch != record.epoch):
            channel.close()
            channel = None
            del self._channels[broker]
        if channel is None and record is not None:
            channel = self._channels[broker] = Channel(self, record)
        return channel

    def tidy(self) -> None:
        """Close the channels to brokers that are gone."""
        for broker in list(self._channels):
            if broker not in self.cluster.brokers:
                self._channel(broker)

    async def acknowledged(self, timeout: float) -> bool:
        """Wait until all pending updates have responses; returns whether that took at most `timeout` seconds."""
        waits = [channel.idle.wait() for channel in self._channels.values()]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*waits)
        except TimeoutError:
            return False
        return True

    def end(self) -> None:
        """Send nothing from now on."""
        for channel in self._channels.values():
            channel.close()

    async def close(self) -> None:
        """Return once all connections are closed."""
        self.end()
        tasks = [channel.task for channel in self._channels.values()]
        self._channels.clear()
        await asyncio.gather(*tasks, return_exceptions=True)


class Channel:
    """The channel to one broker, in one incarnation."""

    def __init__(self, channels: Channels, broker: BrokerRecord) -> None:
        self.broker_id = broker.broker_id
        self.broker_epoch = broker.epoch
        self.idle = asyncio.Event()
        self._broker = broker
        self._channels = channels
        self._cluster = channels.cluster
        self._partitions: dict[TopicPartition, None] = {}
        """Partitions to update, in order of arrival, like those below."""
        self._is_behind = False
        """Whether it needs at least an update of the live brokers."""
        self._to_stop: dict[TopicPartition, int] = {}
        self._to_delete: dict[TopicPartition, None] = {}
        self._to_ask: dict[TopicPartition, None] = {}
        self._wake = asyncio.Event()
        self._connection: Caller | None = None
        self.task = supervision.keep("controller's channel", self._run)

    def push(self, partitions: Collection[TopicPartition] | None) -> None:
        self._partitions |= dict.fromkeys(self._cluster.records if partitions is None else partitions)
        self._is_behind = True
        self._work()

    def stop(self, partitions: Mapping[TopicPartition, int], delete: bool) -> None:
        if delete:
            self._to_delete |= dict.fromkeys(partitions)
        else:
            self._to_stop.update(partitions)
        self._work()

    def ask(self, partitions: Collection[TopicPartition]) -> None:
        self._to_ask |= dict.fromkeys(partitions)
        self._work()

    def close(self) -> None:
        self.idle.set()
        self.task.cancel()

    def _work(self) -> None:
        self.idle.clear()
        self._wake.set()

    @property
    def _has_work(self) -> bool:
        return bool(self._is_behind or self._to_stop or self._to_delete or self._to_ask)

    async def _run(self) -> None:
        pause, is_reachable = PAUSE_S, True
        if self._has_work:  # restarts after an error
            self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    while self._has_work:
                        await self._send_updates()
                        pause, is_reachable = PAUSE_S, True
                    self.idle.set()
                except BrokerError as error:
                    level = logging.INFO if is_reachable else logging.DEBUG
                    log.log(level, "cannot send metadata to broker %d: %s", self.broker_id, error)
                    is_reachable = False
                    await self._drop()
                    self._wake.set()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, MAX_PAUSE_S)
        finally:
            with contextlib.suppress(BrokerError):
                await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _send_updates(self) -> None:
        """Send the next request, and wait for the response. Raises BrokerError, without any other effect."""
        if self._connection is None or self._connection.is_closed:
            name = f"controller-{self._channels.controller_id}"
            self._connection = await self._channels.reach(self._broker, name, timeout_s=PATIENCE_S)
        await yield_to_others()
        await self._channels.rest()
        if self._is_behind:
            await self._update(self._connection)
        elif self._to_stop or self._to_delete:
            await self._stop(self._connection)
        else:
            await self._ask(self._connection)

    async def _update(self, connection: Caller) -> None:
        partitions = _some(self._partitions)
        _drop(self._partitions, partitions)
        self._is_behind = bool(self._partitions)
        try:
            request = await self._update_request(partitions)
            answer = await connection.call(update_metadata.API, 7, request)
            self._check(answer.error_code, connection)
        except BaseException:
            self._partitions |= dict.fromkeys(partitions)
            self._is_behind = True
            raise

    async def _update_request(self, partitions: Collection[TopicPartition]) -> UpdateMetadataRequest:
        """Built in slices. A partition that changes after its slice is sent again, because the change pushes it."""
        channels = self._channels
        steps = update_request(channels.controller_id, self.broker_epoch, self._cluster, partitions)
        while (done := begin(steps)) is None:
            await yield_to_others()
            await channels.rest()
        return done[0]

    async def _stop(self, connection: Caller) -> None:
        some = {*_some(self._to_delete)}
        deleting = self._cluster.to_delete(self.broker_id, some)
        _drop(self._to_delete, some - deleting.keys())
        for key in self._cluster.to_delete(self.broker_id, self._to_stop.keys()):
            del self._to_stop[key]
        stopping = {key: self._to_stop[key] for key in _some(self._to_stop)}
        # Before another turn: a name may soon be another topic's.
        topic_ids = {
            name: topic.topic_id
            for name in {key[0] for key in (*deleting, *stopping)}
            if (topic := self._cluster.topics.get(name)) is not None
        }
        if not (deleting or stopping):
            return
        await yield_to_others()
        request = await finish(
            stop_request(
                self._channels.controller_id,
                self._cluster.epoch,
                self.broker_epoch,
                topic_ids,
                deleting,
                stopping,
            )
        )
        answer = await connection.call(stop_replica.API, 3, request)
        self._check(answer.error_code, connection)
        await yield_to_others()
        failed = _failed(answer)
        for key, epoch in stopping.items():
            if self._to_stop.get(key) == epoch:
                del self._to_stop[key]
        done = [key for key in deleting if key not in failed]
        _drop(self._to_delete, done)
        if done:
            self._channels.answered(Stopped(self.broker_id, self.broker_epoch, done))
        if failed:
            key, code = next(iter(failed.items()))
            raise BrokerError(
                connection.host,
                connection.port,
                f"{len(failed)} replicas, {key[0]}-{key[1]} among them, are not deleted: {code.name}",
            )

    async def _ask(self, connection: Caller) -> None:
        async for key in cooperatively([*self._to_ask]):
            if not self._cluster.is_undecided(key):
                self._to_ask.pop(key, None)
        if not self._to_ask:
            return
        answer = await connection.call(list_offsets.API, 4, log_ends_request(_some(self._to_ask)))
        ends = log_ends(answer)
        _drop(self._to_ask, ends)
        self._channels.answered(LogEnds(self.broker_id, self.broker_epoch, ends))
        if not ends:
            raise BrokerError(connection.host, connection.port, "it does not know where logs end yet")

    def _check(self, error_code: int, connection: Caller) -> None:
        """Raises BrokerError for a response that refuses the whole request."""
        if error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._channels.deposed()
        if error_code:
            name = ErrorCode.of(error_code).name
            raise BrokerError(connection.host, connection.port, f"it answered {name}")


def _some(partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions of one request: those that have waited longest, which are mostly whole topics.

    Internal topics come last: when a broker learns that it coordinates groups, it already knows all other topics, and
    does not take an unknown topic for a deleted one.
    """
    ordinary = (key for key in partitions if not is_internal(key[0]))
    internal = (key for key in partitions if is_internal(key[0]))
    return list(islice(chain(ordinary, internal), MAX_PARTITIONS))


def _drop(waiting: dict[TopicPartition, None], partitions: Iterable[TopicPartition]) -> None:
    for key in partitions:
        waiting.pop(key, None)


def log_ends_request(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(ListOffsetsPartition(index, -1, LATEST))
    return ListOffsetsRequest(
        DEBUGGING_REPLICA_ID, 0, [ListOffsetsTopic(name, partitions) for name, partitions in topics.items()]
    )


def log_ends(answer: ListOffsetsResponse) -> dict[TopicPartition, LogEnd]:
    """The log ends in a response, without those that the broker does not know yet."""
    return {
        (topic.name, partition.partition_index): (partition.leader_epoch, partition.offset)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
    }


def _failed(answer: StopReplicaResponse) -> dict[TopicPartition, ErrorCode]:
    """Replicas that were not stopped. A replica with a newer epoch is not the one to delete."""
    done = (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return {
        (partition.topic_name, partition.partition_index): ErrorCode.of(partition.error_code)
        for partition in answer.partition_errors
        if partition.error_code not in done
    }


def update_request(
    controller_id: int, broker_epoch: int, cluster: ControllerContext, partitions: Iterable[TopicPartition]
) -> Steps[UpdateMetadataRequest]:
    """The state of these partitions, and the live brokers.

    Yields after each partition, and the cluster may change in between: the result may then be slightly outdated, like
    a request in flight. The live brokers are read last, so they are never older than the state of a partition.

    A partition that may not be announced now is being changed, and will be announced to all brokers. Until then,
    brokers that do not know it learn only that it exists: clients must not see a topic with too few partitions.
    """
    topics: dict[str, UpdateMetadataTopicState] = {}
    for key in partitions:
        yield
        if (record := cluster.records.get(key)) is None:
            continue
        name, topic_id = key[0], cluster.topics[key[0]].topic_id
        if (topic := topics.get(name)) is None or topic.topic_id != topic_id:
            topic = topics[name] = UpdateMetadataTopicState(name, topic_id, [])
        if cluster.is_deleting(name) or cluster.may_announce(key):
            topic.partition_states.append(_state(key, record, cluster))
        elif record.version != NO_STATE:
            topic.partition_states.append(
                UpdateMetadataPartitionState(key[1], -1, NO_LEADER, -1, [], NO_STATE, [], [])
            )
    return UpdateMetadataRequest(
        controller_id,
        cluster.epoch,
        broker_epoch,
        [topic for topic in topics.values() if topic.partition_states],
        [
            UpdateMetadataBroker(
                broker.broker_id, [_endpoint(each) for each in broker.listeners], broker.rack, broker.epoch
            )
            for broker in cluster.announced_brokers()
        ],
    )


def _state(
    key: TopicPartition, record: PartitionRecord, cluster: ControllerContext
) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=key[1],
        controller_epoch=record.controller_epoch,
        leader=LEADER_DURING_DELETE if cluster.is_deleting(key[0]) else record.leader,
        leader_epoch=record.leader_epoch,
        isr=list(record.isr),
        zk_version=record.version,
        replicas=list(record.replicas),
        offline_replicas=[replica for replica in record.replicas if replica not in cluster.brokers],
        elr=list(record.elr),
        compared=record.compared,
    )


def _endpoint(listener: Listener) -> UpdateMetadataEndpoint:
    known = listener.protocol in SECURITY_PROTOCOLS
    protocol = SECURITY_PROTOCOLS.index(listener.protocol) if known else 0
    return UpdateMetadataEndpoint(listener.port, listener.host, listener.name, protocol)


def stop_request(
    controller_id: int,
    controller_epoch: int,
    broker_epoch: int,
    topic_ids: Mapping[str, UUID],
    deleting: Mapping[TopicPartition, int],
    stopping: Mapping[TopicPartition, int],
) -> Steps[StopReplicaRequest]:
    """Yields after each partition."""
    topics: dict[str, list[StopReplicaPartitionState]] = defaultdict(list)
    for partitions, delete in ((deleting, True), (stopping, False)):
        for (topic, index), epoch in partitions.items():
            topics[topic].append(StopReplicaPartitionState(index, epoch, delete))
            yield
    return StopReplicaRequest(
        controller_id,
        controller_epoch,
        broker_epoch,
        [
            StopReplicaTopicState(name, states, topic_ids[name])
            for name, states in topics.items()
            if name in topic_ids
        ],
    )
