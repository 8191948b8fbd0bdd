"""The tree as the controller reads and writes it: `ControllerStore`.

Its writes are fenced (`fenced_writes`). After a lost response, the stored state is read, and decides what must still be
written.

Watches cover the brokers, the topics and each topic's assignment, the requests for deletions, and the leaders' notes of
changed ISRs. After a reconnection all of these are read again, because watches are lost with the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from millstream_kafka.topic_partition import TopicPartition
from millstream_process import supervision

from ..runtime.slices import cooperatively
from . import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord, shared, topic_nodes, tree
from .configs import Configs
from .controllership import (
    BrokersChanged,
    ConfigsChanged,
    DeletionsRequested,
    Fenced,
    Image,
    StatesChanged,
    StoreEvent,
    TopicsChanged,
)
from .fenced_writes import FencedWrites
from .stores import (
    Check,
    Create,
    Delete,
    Node,
    Operation,
    Set,
    Store,
    Unavailable,
)
from .task_coalescer import TaskCoalescer

GROUP = 50
"""States written in one multi."""
READ_AT_ONCE = 1000

log = logging.getLogger(__name__)


class TreeControllerStore:
    """`on_fenced` is called once, when a write finds another controller."""

    def __init__(
        self,
        nodes: Store,
        configs: Configs,
        epoch: int,
        epoch_version: int,
        on_fenced: Callable[[], None],
    ) -> None:
        self.epoch = epoch
        self._nodes = nodes
        self._configs = configs
        self._writes = FencedWrites(nodes, epoch, epoch_version, on_fenced)
        self._report: Callable[[StoreEvent], None] = lambda event: None
        self._brokers: dict[int, BrokerRecord] = {}
        self._topics: dict[str, TopicRecord] = {}
        self._versions: dict[str, int] = {}
        self._deletions: frozenset[str] = frozenset()
        self._written: set[str] = set()
        """Topics whose node was written, according to a watch."""
        self._noted: dict[TopicPartition, None] = {}
        """Partitions that leaders' notes name, and whose states were not read since."""
        self._coalescer = TaskCoalescer(
            nodes,
            {
                "brokers": self._look_at_brokers,
                "deletions": self._look_at_deletions,
                "topics": self._look_at_topics,
                "changed ISRs": self._look_at_isr_changes,
            },
        )
        self._working: asyncio.Task[None] | None = None

    def end(self) -> None:
        """This broker is no longer the controller: end all calls."""
        self._writes.end()
        self._report = lambda event: None
        if self._working is not None:
            self._working.cancel()

    def reconnected(self) -> None:
        if self._working is not None:
            self._written |= self._topics.keys()
            self._need_all()

    def _need_all(self) -> None:
        self._coalescer.need("brokers", "deletions", "topics", "changed ISRs")

    def configs_changed(self, entities: Collection[str]) -> None:
        topics = {
            name: self._configs.topics[name]
            for name in (entity.removeprefix("topics/") for entity in entities)
            if name in self._configs.topics and name in self._topics
        }
        if topics or any(entity.startswith("brokers/") for entity in entities):
            self._report(ConfigsChanged(topics, dict(self._configs.brokers)))

    # Reading

    async def load(self, report: Callable[[StoreEvent], None]) -> Image:
        image = await self._writes.persist(self._load)
        self._report = report
        self._working = supervision.keep("controller's watches", self._work)
        return image

    async def _work(self) -> None:
        try:
            await self._coalescer.run()
        except Fenced:
            log.debug("the controller of epoch %d has been fenced", self.epoch)

    async def _load(self) -> Image:
        self._brokers = await self._read_brokers()
        names = await self._nodes.children(tree.TOPICS, self._watch_topics) or []
        self._deletions = await self._read_deletions()
        await self._take_isr_notes()
        self._topics = await self._read_topics(names)
        self._noted.clear()
        known = await self._nodes.children(tree.GENERATIONS) or []
        return Image(
            self._brokers,
            dict(self._topics),
            self._deletions,
            frozenset(int(name) for name in known if name.isdecimal()),
        )

    async def _read_brokers(self) -> dict[int, BrokerRecord]:
        names = await self._nodes.children(tree.BROKERS, lambda path: self._coalescer.need("brokers")) or []
        ids = sorted(int(name) for name in names if name.isdecimal())
        nodes = await self._nodes.get_all(map(tree.broker_path, ids))
        found = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            if node is None:
                continue
            try:
                found[broker_id] = tree.broker_from(broker_id, node.data, node.created)
            except tree.TreeError as error:
                log.error("%s", error)
        return found

    async def _read_deletions(self) -> frozenset[str]:
        """The topics to delete. A request counts for the topic id that it names, or else for an older topic."""
        watch = lambda path: self._coalescer.need("deletions")  # noqa: E731
        names = await self._nodes.children(tree.DELETE_TOPICS, watch) or []
        paths = list(map(tree.delete_topic_path, names))
        requests = await self._nodes.get_all(paths)
        topics = await self._nodes.get_all(map(tree.topic_path, names))
        outdated = [
            path
            for name, path, request, topic in zip(names, paths, requests, topics, strict=True)
            if request is not None and topic is not None and not _is_for(name, request, topic)
        ]
        for path in outdated:
            log.warning("%s is a request to delete another topic of that name: removed", path)
        await self._writes.delete_each(outdated)
        return frozenset(names) - {path.rpartition("/")[2] for path in outdated}

    async def _read_topics(self, names: Sequence[str]) -> dict[str, TopicRecord]:
        """Read topics with their states and configurations; those deleted in between are left out."""
        nodes = await self._nodes.get_all(map(tree.topic_path, names), self._watch_topic)
        found: dict[str, TopicRecord] = {}
        async for name, node in cooperatively(zip(names, nodes, strict=True)):
            if node is None:
                continue
            try:
                found[name] = await topic_nodes.decoded(name, node.data)
            except tree.TreeError as error:
                log.error("%s", error)
                continue
            self._versions[name] = node.version
        await self._configs.ensure(found)
        keys = [
            (name, index)
            for name, topic in found.items()
            async for index in cooperatively(range(len(topic.partitions)))
        ]
        partitions: dict[str, list[PartitionRecord]] = {name: [] for name in found}
        async for (name, _), state in cooperatively((await self._read_states(keys, found)).items()):
            partitions[name].append(state)
        return {
            name: replace(
                topic, partitions=tuple(partitions[name]), config=self._configs.topics.get(name, {})
            )
            async for name, topic in cooperatively(found.items())
        }

    async def _read_states(
        self, keys: Sequence[TopicPartition], topics: Mapping[str, TopicRecord]
    ) -> dict[TopicPartition, PartitionRecord]:
        """In the order of the keys."""
        found: dict[TopicPartition, PartitionRecord] = {}
        for start in range(0, len(keys), READ_AT_ONCE):
            some = keys[start : start + READ_AT_ONCE]
            nodes = await self._nodes.get_all(tree.state_path(*key) for key in some)
            async for key, node in cooperatively(zip(some, nodes, strict=True)):
                found[key] = _with_state(key, topics[key[0]].partitions[key[1]], node)
        return found

    def _watch_topics(self, path: str) -> None:
        self._coalescer.need("topics")

    def _watch_topic(self, path: str) -> None:
        self._written.add(path.rpartition("/")[2])
        self._coalescer.need("topics")

    async def _look_at_brokers(self) -> None:
        brokers = await self._read_brokers()
        if brokers != self._brokers:
            self._brokers = brokers
            self._report(BrokersChanged(brokers))

    async def _look_at_deletions(self) -> None:
        deletions = await self._read_deletions()
        if deletions != self._deletions:
            self._deletions = deletions
            self._report(DeletionsRequested(deletions))

    async def _look_at_topics(self) -> None:
        names = await self._nodes.children(tree.TOPICS, self._watch_topics) or []
        written, self._written = self._written, set()
        gone = self._topics.keys() - set(names)
        for name in gone:
            del self._topics[name]
            self._versions.pop(name, None)
        known = dict(self._versions)
        looked_at = [name for name in names if name in written or name not in self._topics]
        try:
            read = await self._read_topics(looked_at)
        except Unavailable:
            self._versions = known
            self._written |= written
            raise
        changed = {
            name: topic
            for name, topic in read.items()
            if name not in self._topics
            or known.get(name) != self._versions[name]
            or self._topics[name].topic_id != topic.topic_id
        }
        self._topics |= changed
        if changed or gone:
            self._report(TopicsChanged(changed, frozenset(self._topics)))

    async def _look_at_isr_changes(self) -> None:
        await self._take_isr_notes()
        keys = [
            (topic, index)
            for topic, index in self._noted
            if topic in self._topics and 0 <= index < len(self._topics[topic].partitions)
        ]
        if keys:
            self._report(StatesChanged(await self._read_states(keys, self._topics)))
        self._noted.clear()

    async def _take_isr_notes(self) -> None:
        """Read the leaders' notes and remove them; before the states are read, so that no change is missed.

        A response to their removal may be lost, so what they name is kept until the states were read.
        """
        watch = lambda path: self._coalescer.need("changed ISRs")  # noqa: E731
        names = sorted(await self._nodes.children(tree.ISR_CHANGES, watch) or ())
        paths = [f"{tree.ISR_CHANGES}/{name}" for name in names]
        for path, node in zip(paths, await self._nodes.get_all(paths), strict=True):
            try:
                self._noted |= dict.fromkeys(tree.isr_change_from(path, node.data) if node else ())
            except tree.TreeError as error:
                log.error("%s", error)
        await self._writes.delete_each(paths)

    # Writing

    async def write_states(
        self, states: Mapping[TopicPartition, PartitionRecord]
    ) -> Mapping[TopicPartition, PartitionRecord]:
        stored: dict[TopicPartition, PartitionRecord] = {}
        pending = dict(states)
        alone: set[TopicPartition] = set()
        """States whose multi failed, to be written one by one."""

        async def write() -> None:
            new = {key: record for key, record in pending.items() if record.version == tree.NO_STATE}
            if new:
                await self._create_parents({topic for topic, _ in new})
            groups = [*_groups(pending.keys() - alone), *([key] for key in sorted(pending.keys() & alone))]
            multis = [
                [self._writes.check, *(op for key in group for op in _write_state(key, pending[key]))]
                async for group in cooperatively(groups)
            ]
            answers = await self._nodes.multi_all(multis)
            unclear: list[TopicPartition] = []
            for group, answer in zip(groups, answers, strict=True):
                if isinstance(answer, list):
                    for key in group:
                        record = pending.pop(key)
                        stored[key] = shared(replace(record, version=record.version + 1))
                    continue
                self._writes.raise_if_fenced(answer)
                if isinstance(answer, Unavailable) or len(group) == 1:
                    unclear += group
                else:
                    alone.update(group)
            if unclear:
                await self._resolve(unclear, pending, stored)

        while pending:
            await self._writes.persist(write)
        self._remember(stored)
        return {key: stored[key] for key in states}

    async def _resolve(
        self,
        unclear: Sequence[TopicPartition],
        pending: dict[TopicPartition, PartitionRecord],
        stored: dict[TopicPartition, PartitionRecord],
    ) -> None:
        """Read the outcome of writes; those that have not happened, but still can, stay in `pending`."""
        for key, node in zip(
            unclear, await self._nodes.get_all(tree.state_path(*key) for key in unclear), strict=True
        ):
            record = pending[key]
            if node is None and record.version == tree.NO_STATE:
                if await self._nodes.get(tree.topic_path(key[0])) is None:
                    stored[key] = _with_state(key, pending.pop(key), None)
                elif await self._nodes.get(tree.partition_path(*key)) is not None:
                    await self._writes.delete_each([tree.partition_path(*key)])
            elif node is None or node.version != record.version:
                stored[key] = _with_state(key, pending.pop(key), node)

    def _remember(self, stored: Mapping[TopicPartition, PartitionRecord]) -> None:
        by_topic: defaultdict[str, dict[int, PartitionRecord]] = defaultdict(dict)
        for (name, index), record in stored.items():
            by_topic[name][index] = record
        for name, records in by_topic.items():
            if (topic := self._topics.get(name)) is not None:
                partitions = list(topic.partitions)
                for index, record in records.items():
                    if index < len(partitions):
                        partitions[index] = record
                self._topics[name] = replace(topic, partitions=tuple(partitions))

    async def _create_parents(self, topics: Collection[str]) -> None:
        paths = [tree.partitions_path(name) for name in sorted(topics)]
        missing = [
            path for path, node in zip(paths, await self._nodes.get_all(paths), strict=True) if node is None
        ]
        await self._writes.each(map(Create, missing))

    async def write_assignment(self, topic: TopicRecord) -> None:
        async def write() -> None:
            path = tree.topic_path(topic.name)
            node = await self._nodes.get(path, self._watch_topic)
            if node is None:
                return
            stored = await topic_nodes.decoded(topic.name, node.data)
            if stored.topic_id != topic.topic_id:
                return
            # Partitions that another writer added meanwhile stay unchanged.
            added = stored.partitions[len(topic.partitions) :]
            data = await topic_nodes.encoded(replace(stored, partitions=topic.partitions + added))
            if data != node.data:
                await self._writes.multi([Set(path, data, node.version)])
            known = self._topics.get(topic.name)
            if known is not None and self._versions.get(topic.name) == node.version:
                self._versions[topic.name] += data != node.data
                self._topics[topic.name] = replace(known, partitions=topic.partitions + added)

        await self._writes.persist(write)

    async def accept_broker(self, broker: BrokerRecord) -> None:
        path = tree.broker_path(broker.broker_id)

        async def write() -> None:
            registrations = await self._nodes.get(tree.BROKERS)
            node = await self._nodes.get(path)
            if registrations is None or node is None or node.created != broker.epoch:
                return
            accepted = replace(
                tree.broker_from(broker.broker_id, node.data, node.created), unclean=False, ahead=0
            )
            # The broker's next registration has the same version, and raises that of the node above it.
            same = Check(tree.BROKERS, registrations.version)
            await self._writes.multi([same, Set(path, tree.broker_json(accepted), node.version)])
            if broker.broker_id in self._brokers:
                self._brokers[broker.broker_id] = accepted

        await self._writes.persist(write)

    async def remove_topic(self, name: str) -> None:
        async def remove() -> None:
            above = tree.partitions_path(name)
            parts = [f"{above}/{index}" for index in await self._nodes.children(above) or ()]
            below = await self._nodes.children_of_all(parts)
            await self._writes.delete_each(
                f"{part}/{child}" for part, found in zip(parts, below, strict=True) for child in found or ()
            )
            await self._writes.delete_each(parts)
            last = [
                above,
                tree.topic_path(name),
                tree.config_path(tree.topic_entity(name)),
                tree.delete_topic_path(name),
            ]
            found = zip(last, await self._nodes.get_all(last), strict=True)
            await self._writes.multi([Delete(path) for path, node in found if node is not None])

        await self._writes.persist(remove)
        self._configs.forget(name)

    async def resign(self) -> None:
        async def leave() -> None:
            if (node := await self._nodes.get(tree.CONTROLLER)) is not None:
                await self._writes.multi([Delete(tree.CONTROLLER, node.version)])

        await self._writes.persist(leave)

    async def refuse_deletion(self, names: Collection[str]) -> None:
        async def refuse() -> None:
            """The controller may not know yet of a topic that is created and deleted at once."""
            topics = await self._nodes.get_all(map(tree.topic_path, names))
            absent = [name for name, node in zip(names, topics, strict=True) if node is None]
            await self._writes.delete_each([tree.delete_topic_path(name) for name in absent])

        await self._writes.persist(refuse)


def _is_for(name: str, request: Node, topic: Node) -> bool:
    """Whether a request for a deletion, which may come from an older copy of the tree, is for this topic."""
    try:
        topic_id = tree.deletion_from(name, request.data)
        return (
            request.created > topic.created
            if topic_id is None
            else topic_id == tree.topic_id_from(name, topic.data)
        )
    except tree.TreeError as error:
        log.error("%s", error)
        return False


def _groups(keys: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    ordered = sorted(keys)
    return [ordered[at : at + GROUP] for at in range(0, len(ordered), GROUP)]


def _write_state(key: TopicPartition, record: PartitionRecord) -> list[Operation]:
    path, data = tree.state_path(*key), tree.state_json(record)
    if record.version == tree.NO_STATE:
        return [Create(tree.partition_path(*key)), Create(path, data)]
    return [Set(path, data, record.version)]


def _with_state(key: TopicPartition, partition: PartitionRecord, node: Node | None) -> PartitionRecord:
    version = tree.NO_STATE
    if node is not None:
        try:
            return tree.with_state(tree.state_path(*key), partition, node.data, node.version)
        except tree.TreeError as error:
            log.error("%s", error)
            version = node.version
    return shared(
        replace(
            partition,
            leader=NO_LEADER,
            leader_epoch=-1,
            isr=(),
            version=version,
            elr=(),
            suspects=(),
            doubted=False,
            compared=-1,
        )
    )
