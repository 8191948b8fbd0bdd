"""Coordination of a cluster of one broker: one JSON file, `coordination.json`, in the first log directory.

    {"version": 1,
     "cluster_id": "5Zx…",                       Kafka's form: 16 random bytes in unpadded URL-safe base64
     "broker_epoch": 7,                          how often a broker has joined
     "next_producer_id": 3000,
     "topics": {"flights": {"id": "…", "config": {"retention.ms": "1000"},
                            "partitions": [{"replicas": [1], "leader": 1, "leader_epoch": 2, "isr": [1],
                                            "version": 3}]}},
     "deleting": {"TOPIC-ID": "name"},
     "broker_configs": {"": {}, "1": {"log.retention.ms": "1000"}},
     "generations": {"DIRECTORY-ID": 7}}         of the log directories (`generations`); absent in older files

It is replaced atomically: written beside itself, fsynced, renamed, and the folder fsynced, so a crash leaves the old
file or the new one. A thread writes it, once for all changes that wait (group commit): changes that come while it is
written wait for the next write. They are made in their order; a change that cannot be written has not happened.

Joining elects the broker leader of all its partitions under a new leader epoch, as a controller would after the
broker was away: consumers that read records which a crash of the machine then took back notice it by the epoch
(KIP-320). Where a log directory is ahead of the file, the file is an older copy: the epochs rise by as much more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..kafka_uuid import uuid_text
from ..log.files import write_atomically
from . import BrokerRecord, ClusterState, Conflict, CoordinationError, PartitionRecord, TopicRecord

log = logging.getLogger(__name__)

FILE_NAME = "coordination.json"
PRODUCER_ID_BLOCK = 1000
TOLD_AT_ONCE = 200
"""Callers that are resumed in one turn of the loop."""
FIELDS = ("replicas", "leader", "leader_epoch", "isr", "version")
"""What the file has of a partition."""


def new_cluster_id() -> str:
    return uuid_text(uuid.uuid4())


@dataclass(slots=True)
class Stored:
    """What the file holds. Once written it never changes: the next write begins with a copy."""

    cluster_id: str
    broker_epoch: int = 0
    next_producer_id: int = 0
    topics: dict[str, TopicRecord] = field(default_factory=dict)
    deleting: dict[uuid.UUID, str] = field(default_factory=dict)
    broker_configs: Mapping[int | None, Mapping[str, str]] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)

    def topic(self, name: str) -> TopicRecord:
        if (topic := self.topics.get(name)) is None:
            raise Conflict(f"there is no topic {name}")
        return topic

    def copy(self) -> Stored:
        return replace(self, topics=dict(self.topics), deleting=dict(self.deleting))


Change = Callable[[Stored], None]
"""Makes a change, or raises and makes none."""


class EmbeddedCoordination:
    """`Coordination` for one broker. `known_cluster_id` is used where the file does not exist yet."""

    def __init__(self, folder: Path, known_cluster_id: str | None = None) -> None:
        self._path = folder / FILE_NAME
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._texts: dict[str, tuple[TopicRecord, bytes]] = {}
        """Each topic as the file has it."""
        self._broker: BrokerRecord | None = None
        self._behind = 0
        """How many starts this file may have missed."""
        self.changes: Callable[[ClusterState], None] = lambda state: None
        self.failed: Callable[[OSError], None] = lambda error: None
        """Called when the file cannot be written."""
        self.is_new = not self._path.exists()
        self._stored = Stored(known_cluster_id or new_cluster_id()) if self.is_new else _load(self._path)

    @property
    def cluster_id(self) -> str:
        return self._stored.cluster_id

    def stored_topics(self) -> Mapping[str, TopicRecord]:
        """The topics as they were stored, before joining."""
        return self._stored.topics

    def adopt(self, topics: Iterable[TopicRecord]) -> None:
        """Take over topics whose logs were found although the file was not; before joining."""
        for topic in topics:
            self._stored.topics[topic.name] = topic

    def state(self) -> ClusterState:
        assert self._broker is not None, "join comes first"
        stored, broker_id = self._stored, self._broker.broker_id
        return ClusterState(
            stored.cluster_id,
            {broker_id: self._broker},
            stored.topics,
            broker_id,
            stored.deleting,
            stored.broker_configs,
        )

    async def generations(self, broker_id: int) -> Mapping[str, int]:
        return self._stored.generations

    async def show_generations(self, broker_id: int, generations: Mapping[str, int]) -> None:
        """Before joining they are kept in memory, and are written by it."""

        def show(stored: Stored) -> None:
            stored.generations = {**stored.generations, **generations}

        if self._broker is None:
            known = self._stored.generations
            ahead = [generation - known[one] - 1 for one, generation in generations.items() if one in known]
            self._behind = max(0, *ahead, 0)
            show(self._stored)
        else:
            await self._change(show)

    async def join(self, broker: BrokerRecord, *, takes_over: bool = True) -> ClusterState:
        epochs = 1 + self._behind

        def elect(stored: Stored) -> None:
            stored.broker_epoch += 1
            for topic in stored.topics.values():
                partitions = tuple(_elect(one, broker.broker_id, epochs) for one in topic.partitions)
                stored.topics[topic.name] = replace(topic, partitions=partitions)

        self._broker = broker
        await self._change(elect)
        self._broker = replace(broker, epoch=self._stored.broker_epoch)
        return self.state()

    async def create_topic(self, topic: TopicRecord) -> None:
        def create(stored: Stored) -> None:
            if topic.name in stored.topics:
                raise Conflict(f"there is a topic {topic.name}")
            stored.topics[topic.name] = topic

        await self._change(create)

    async def add_partitions(self, name: str, partitions: tuple[PartitionRecord, ...]) -> None:
        def add(stored: Stored) -> None:
            topic = stored.topic(name)
            stored.topics[name] = replace(topic, partitions=topic.partitions + partitions)

        await self._change(add)

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        def configure(stored: Stored) -> None:
            stored.topics[name] = replace(stored.topic(name), config=dict(config))

        await self._change(configure)

    async def set_broker_config(self, broker_id: int | None, config: Mapping[str, str]) -> None:
        def configure(stored: Stored) -> None:
            stored.broker_configs = {**stored.broker_configs, broker_id: dict(config)}

        await self._change(configure)

    async def write_partition(self, name: str, index: int, record: PartitionRecord) -> PartitionRecord:
        written = replace(record, version=record.version + 1)

        def write(stored: Stored) -> None:
            topic = stored.topic(name)
            if topic.partitions[index].version != record.version:
                raise Conflict(f"{name}-{index} was changed meanwhile")
            partitions = (*topic.partitions[:index], written, *topic.partitions[index + 1 :])
            stored.topics[name] = replace(topic, partitions=partitions)

        await self._change(write)
        return written

    async def delete_topic(self, name: str) -> None:
        def delete(stored: Stored) -> None:
            stored.deleting[stored.topic(name).topic_id] = name
            del stored.topics[name]

        await self._change(delete)

    async def topics_removed(self, topic_ids: Collection[uuid.UUID]) -> None:
        def forget(stored: Stored) -> None:
            for topic_id in topic_ids:
                stored.deleting.pop(topic_id, None)

        await self._change(forget)

    async def allocate_producer_ids(self) -> range:
        block = range(0)

        def allocate(stored: Stored) -> None:
            nonlocal block
            block = range(stored.next_producer_id, stored.next_producer_id + PRODUCER_ID_BLOCK)
            stored.next_producer_id = block.stop

        await self._change(allocate)
        return block

    async def leave(self) -> None:
        """Wait for what is to be written."""
        self.changes = lambda state: None
        if self._writing is not None:
            await self._writing

    async def _change(self, change: Change) -> None:
        """Return when it is written; raises what `change` raises, or CoordinationError."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await written

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._write(waiting)
        finally:
            self._writing = None

    async def _write(self, waiting: list[tuple[Change, asyncio.Future[None]]]) -> None:
        """Make these changes in one write."""
        changed, outcomes = self._stored.copy(), list[Exception | None]()
        for change, _ in waiting:
            try:
                change(changed)
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        if None in outcomes and (failure := await self._store(changed)) is not None:
            outcomes = [failure if outcome is None else outcome for outcome in outcomes]
        for number, ((_, written), outcome) in enumerate(zip(waiting, outcomes, strict=True), 1):
            if not written.done():
                if outcome is None:
                    written.set_result(None)
                else:
                    written.set_exception(outcome)
            if number % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _store(self, changed: Stored) -> CoordinationError | None:
        try:
            await asyncio.to_thread(lambda: write_atomically(str(self._path), self._text(changed)))
        except OSError as error:
            log.error("%s: cannot be written: %s", self._path, error.strerror)
            self.failed(error)
            return CoordinationError(f"{self._path}: cannot be written: {error.strerror}")
        except Exception as error:  # else those who wait for the write would wait for ever
            log.exception("%s: cannot be written", self._path)
            return CoordinationError(f"{self._path}: cannot be written: {error!r}")
        self._stored = changed
        self.changes(self.state())
        return None

    def _text(self, stored: Stored) -> bytes:
        """The file's content, of which only topics that changed are written anew. In the thread that writes."""
        texts = {}
        for name, topic in stored.topics.items():
            known = self._texts.get(name)
            texts[name] = (topic, _topic_text(topic)) if known is None or known[0] is not topic else known
        self._texts = texts
        topics = b",".join(text for _, text in texts.values())
        return b'%s,"topics":{%s}}' % (_dump(_without_topics(stored))[:-1], topics)


def _load(path: Path) -> Stored:
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["version"] != 1:
            raise CoordinationError(f"{path}: version {data['version']} is not known: expected 1")
        return Stored(
            data["cluster_id"],
            data["broker_epoch"],
            data["next_producer_id"],
            {name: _topic_from_json(name, topic) for name, topic in data["topics"].items()},
            {uuid.UUID(topic_id): name for topic_id, name in data["deleting"].items()},
            {int(key) if key else None: of for key, of in data["broker_configs"].items()},
            data.get("generations", {}),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CoordinationError(f"{path}: cannot be read: {error!r}") from None


def _without_topics(stored: Stored) -> dict[str, Any]:
    return {
        "version": 1,
        "cluster_id": stored.cluster_id,
        "broker_epoch": stored.broker_epoch,
        "next_producer_id": stored.next_producer_id,
        "deleting": {str(topic_id): name for topic_id, name in stored.deleting.items()},
        "broker_configs": {
            "" if key is None else str(key): dict(of) for key, of in stored.broker_configs.items()
        },
        "generations": dict(stored.generations),
    }


def _elect(partition: PartitionRecord, broker_id: int, epochs: int) -> PartitionRecord:
    return replace(
        partition,
        leader=broker_id,
        leader_epoch=partition.leader_epoch + epochs,
        isr=(broker_id,),
        version=partition.version + 1,
    )


def _topic_text(topic: TopicRecord) -> bytes:
    """`"name":{…}`. In short steps, however many partitions there are: the loop runs beside it."""
    partitions = b",".join(
        _dump({field: getattr(partition, field) for field in FIELDS}) for partition in topic.partitions
    )
    head = _dump({"id": str(topic.topic_id), "config": dict(topic.config)})[:-1]
    return b'%s:%s,"partitions":[%s]}' % (_dump(topic.name), head, partitions)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _topic_from_json(name: str, topic: dict[str, Any]) -> TopicRecord:
    partitions = tuple(
        PartitionRecord(
            tuple(one["replicas"]), one["leader"], one["leader_epoch"], tuple(one["isr"]), one["version"]
        )
        for one in topic["partitions"]
    )
    return TopicRecord(name, uuid.UUID(topic["id"]), partitions, topic["config"])
