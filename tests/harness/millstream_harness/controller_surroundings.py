"""A controller's surroundings in memory: the store that it writes to, and the brokers that it sends requests to."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millstream_broker.coordination import BrokerRecord, PartitionRecord, TopicRecord
from millstream_broker.coordination.controllership import Image, StoreEvent
from millstream_broker.security.mechanisms.inter_broker import InterBroker
from millstream_harness.virtual_time import now
from millstream_kafka.client.errors import BrokerError, ConnectFailed
from millstream_kafka.protocol import list_offsets, stop_replica, update_metadata
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millstream_kafka.protocol.stop_replica import StopReplicaPartitionError, StopReplicaResponse
from millstream_kafka.protocol.update_metadata import UpdateMetadataResponse
from millstream_kafka.topic_partition import TopicPartition


class MemoryStore:
    """A controller's store. `calls` records the calls; the next calls raise `problems`."""

    def __init__(self, brokers: Collection[int], *topics: TopicRecord) -> None:
        self.epoch = 5
        self.brokers = {number: BrokerRecord(number, (), None, 1) for number in brokers}
        self.topics = {one.name: one for one in topics}
        self.calls: list[tuple[str, Any]] = []
        self.times: list[float] = []
        """Times of the calls."""
        self.problems: deque[Exception] = deque()
        self.takes_s = 0.0
        """Duration of each call."""
        self.early: list[StoreEvent] = []
        """Reports that arrived before it was loaded."""
        self.report: Callable[[StoreEvent], None] = lambda event: None

    async def _called(self, name: str, what: Any = None) -> None:
        self.calls.append((name, what))
        self.times.append(now())
        await asyncio.sleep(self.takes_s)
        if self.problems:
            raise self.problems.popleft()

    def called(self, name: str) -> list[Any]:
        return [what for each, what in self.calls if each == name]

    async def load(self, report: Callable[[StoreEvent], None]) -> Image:
        self.report = report
        for event in self.early:
            report(event)
        await self._called("load")
        return Image(self.brokers, self.topics, frozenset())

    async def write_states(
        self, states: Mapping[TopicPartition, PartitionRecord]
    ) -> Mapping[TopicPartition, PartitionRecord]:
        await self._called("write_states", states)
        return {key: replace(one, version=one.version + 1) for key, one in states.items()}

    async def write_assignment(self, topic: TopicRecord) -> None:
        await self._called("write_assignment", topic)

    async def accept_broker(self, broker: BrokerRecord) -> None:
        await self._called("accept_broker", broker)

    async def remove_topic(self, name: str) -> None:
        await self._called("remove_topic", name)

    async def resign(self) -> None:
        await self._called("resign")

    async def refuse_deletion(self, names: Collection[str]) -> None:
        await self._called("refuse_deletion", names)


@dataclass
class Asked:
    """A request as a broker reads it."""

    broker: int
    epoch: int
    """Epoch of the addressed broker."""
    version: int
    request: Any


class Peers(InterBroker):
    """The other brokers. They carry out requests at once, unless they are `away`, `silent` or have a `script`."""

    def __init__(self, broker_id: int = 9) -> None:
        super().__init__(broker_id, "PLAINTEXT", b"", lambda: 1)
        self.asked: list[Asked] = []
        self.connects: list[tuple[int, str, float, float]] = []
        """Broker, client id, timeout, and time of each connection."""
        self.connections: list[PeerConnection] = []
        self.away: set[int] = set()
        self.silent: set[int] = set()
        """Brokers that accept requests and do not respond before `wake`."""
        self._woken = asyncio.Event()
        self.scripts: dict[int, deque[Any]] = defaultdict(deque)
        """A broker's next responses: a response, an error to raise, or None for the usual one."""

    async def connect(
        self, broker: BrokerRecord, client_id: str, *, timeout_s: float, max_response_bytes: int = 0
    ) -> Any:
        self.connects.append((broker.broker_id, client_id, timeout_s, now()))
        if broker.broker_id in self.away:
            raise ConnectFailed(f"broker-{broker.broker_id}", 9092, "no route to host")
        connection = PeerConnection(self, broker)
        self.connections.append(connection)
        return connection

    def wake(self) -> None:
        self.silent.clear()
        self._woken.set()

    async def awake(self, broker: int) -> None:
        if broker in self.silent:
            self._woken.clear()
            await self._woken.wait()

    def of(self, broker: int) -> list[Any]:
        """The requests to a broker."""
        return [one.request for one in self.asked if one.broker == broker]

    def open(self) -> list[int]:
        return [one.broker.broker_id for one in self.connections if not one.is_closed]


class PeerConnection:
    def __init__(self, peers: Peers, broker: BrokerRecord) -> None:
        self.peers = peers
        self.broker = broker
        self.host, self.port = f"broker-{broker.broker_id}", 9092
        self.is_closed = False

    async def call(self, api: Api[Any, Any], version: int, request: Any) -> Any:
        number = self.broker.broker_id
        request = api.decode_request(version, api.encode_request(version, request))
        self.peers.asked.append(Asked(number, self.broker.epoch, version, request))
        await self.peers.awake(number)
        script = self.peers.scripts[number]
        answer = (script.popleft() if script else None) or usual_answer(api, request)
        if isinstance(answer, BrokerError):
            raise answer
        return api.decode_response(version, api.encode_response(version, answer))

    async def close(self) -> None:
        self.is_closed = True


def usual_answer(api: Api[Any, Any], request: Any) -> Any:
    """Success, with empty logs."""
    if api is update_metadata.API:
        return UpdateMetadataResponse()
    if api is stop_replica.API:
        done = [
            StopReplicaPartitionError(topic.topic_name, one.partition_index, 0)
            for topic in request.topic_states
            for one in topic.partition_states
        ]
        return StopReplicaResponse(0, done)
    assert api is list_offsets.API
    return ListOffsetsResponse(
        0,
        [
            ListOffsetsTopicResponse(
                topic.name,
                [ListOffsetsPartitionResponse(one.partition_index, 0, -1, 0, 0) for one in topic.partitions],
            )
            for topic in request.topics
        ],
    )
