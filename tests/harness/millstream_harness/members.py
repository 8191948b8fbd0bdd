"""Brokers' coordination over a real ZooKeeper, without the brokers: each one's notifications are kept for the test."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from millstream_broker.config.config import Listener
from millstream_broker.coordination import BrokerRecord, ClusterState, PartitionRecord, TopicRecord, tree
from millstream_broker.coordination.controllership import ControllerStore, Image, StoreEvent, TopicsChanged
from millstream_broker.coordination.coordination import Coordination
from millstream_broker.coordination.stores.ensemble import parse_connect
from millstream_broker.coordination.stores.zookeeper import ZooKeeperStore
from millstream_kafka.protocol.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)


class Member:
    """A broker's coordination, with all its notifications."""

    def __init__(
        self, connect: str, broker_id: int, known_cluster_id: str | None = None, **more: Any
    ) -> None:
        session_s = more.pop("session_s", 60.0)
        directory = more.pop("directory", f"directory-{broker_id}")
        self.store = ZooKeeperStore(parse_connect(connect), session_s)
        self.coordination = Coordination(self.store, known_cluster_id, **more)
        self.record = BrokerRecord(
            broker_id, (Listener("PLAINTEXT", "127.0.0.1", 9000 + broker_id),), directory=directory
        )
        self.states: list[ClusterState] = []
        self.stores: list[ControllerStore] = []
        self.depositions = 0
        self.events: list[StoreEvent] = []
        self.coordination.changes = self.states.append
        self.coordination.on_elected = self.stores.append
        self.coordination.on_deposed = self._deposed

    def _deposed(self) -> None:
        self.depositions += 1

    @property
    def state(self) -> ClusterState:
        return self.states[-1]

    @property
    def epoch(self) -> int:
        """The broker epoch."""
        broker = self.coordination._registration.broker
        assert broker is not None
        return broker.epoch

    async def join(self) -> Member:
        await self.coordination.connect()
        self.states.append(await self.coordination.join(self.record))
        return self

    async def elected(self) -> ControllerStore:
        await until(lambda: self.stores)
        return self.stores[-1]

    async def load(self) -> Image:
        return await (await self.elected()).load(self.events.append)

    def last(self, kind: type) -> Any:
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)


@asynccontextmanager
async def members(connect: str, *ids: int, **more: Any) -> AsyncIterator[list[Member]]:
    joined = [Member(connect, broker_id, **more) for broker_id in ids]
    try:
        for member in joined:
            await member.join()
        yield joined
    finally:
        for member in joined:
            await member.coordination.leave()


async def until(condition: Callable[[], object], deadline: float = 60.0) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.01)


def topic_of(name: str, partitions: int = 1, replicas: tuple[int, ...] = (1, 2)) -> TopicRecord:
    record = PartitionRecord(replicas, replicas[0], 0, replicas)
    return TopicRecord(name, uuid.uuid4(), (record,) * partitions, {})


def told(
    controller: Member, brokers: Iterable[Member], topics: Iterable[TopicRecord], to: Member, **more: Any
) -> UpdateMetadataRequest:
    """A controller's update about topics as they are stored."""
    deleted = more.pop("deleted", False)
    return UpdateMetadataRequest(
        controller.record.broker_id,
        more.get("controller_epoch", controller.stores[-1].epoch if controller.stores else 1),
        more.get("broker_epoch", to.epoch),
        [
            UpdateMetadataTopicState(
                topic.name,
                topic.topic_id,
                [
                    UpdateMetadataPartitionState(
                        index,
                        one.controller_epoch,
                        LEADER_DURING_DELETE if deleted else one.leader,
                        one.leader_epoch,
                        list(one.isr),
                        one.version,
                        list(one.replicas),
                        [],
                    )
                    for index, one in enumerate(topic.partitions)
                ],
            )
            for topic in topics
        ],
        [
            UpdateMetadataBroker(
                one.record.broker_id,
                [
                    UpdateMetadataEndpoint(where.port, where.host, where.name, 0)
                    for where in one.record.listeners
                ],
                one.record.rack,
            )
            for one in brokers
        ],
    )


async def lead(controller: Member, store: ControllerStore, names: Iterable[str]) -> dict[str, TopicRecord]:
    """Elect the first replicas of new topics, as the controller does; returns the resulting topics."""
    await until(lambda: set(names) <= set(topics_of(controller)))
    topics = topics_of(controller)
    new = {
        (name, index): replace(
            one, leader=one.replicas[0], leader_epoch=0, isr=one.replicas, controller_epoch=store.epoch
        )
        for name in names
        for index, one in enumerate(topics[name].partitions)
        if one.version == tree.NO_STATE
    }
    written = await store.write_states(new)
    return {
        name: replace(
            topics[name],
            partitions=tuple(
                written.get((name, index), one) for index, one in enumerate(topics[name].partitions)
            ),
        )
        for name in names
    }


def topics_of(controller: Member) -> dict[str, TopicRecord]:
    found: dict[str, TopicRecord] = {}
    for event in controller.events:
        if isinstance(event, TopicsChanged):
            found |= event.topics
    return found


async def led_topic(controller: Member, partitions: int = 1) -> TopicRecord:
    store = await controller.elected()
    await controller.load()
    creating = asyncio.create_task(controller.coordination.topics.create(topic_of("t", partitions)))
    led = await lead(controller, store, ["t"])
    await controller.coordination.update(told(controller, [controller], led.values(), controller))
    await creating
    return led["t"]


async def stored(member: Member, path: str) -> Any:
    node = await member.coordination._nodes.get(path)
    return None if node is None else json.loads(node.data or b"null")
