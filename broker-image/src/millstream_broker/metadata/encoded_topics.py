"""Topics encoded for Metadata responses: once for each state of the cluster, shared by all requests.

A response for all topics of a large cluster takes a tenth of a second to encode, and every client requests it. So each
topic is encoded once for each form (API version, with operations or without), and again only after it has changed. All
topics together are joined once for each state. Encoding runs in slices, between which others use the loop; requests
for the same topics wait for it.

Only the newest state is kept, in up to MAX_FORMS forms.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence

from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.metadata import (
    PARTITION,
    TOPIC,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream_kafka.protocol.schema import Encoded

from ..coordination import TopicRecord
from ..runtime.slices import finish
from ..runtime.steps import Steps, to_the_end
from ..topic_rules.internal_topics import is_internal
from .cache import Metadata

MAX_FORMS = 4
"""Clients of one cluster rarely speak more versions; for each, a partition takes some hundred bytes."""
AT_ONCE = 200
"""Partitions encoded, or topics joined, in one turn of the loop."""
NO_LEADER = -1

Form = tuple[int, int | None]
"""The API version, and the operations that topics are described with."""
Requested = TopicRecord | MetadataResponseTopic
"""A topic, or the response for one that does not exist."""


class EncodedTopics:
    """All is called on the loop. `offline` gives the partitions of this broker that cannot be used."""

    def __init__(
        self,
        broker_id: int,
        metadata: Callable[[], Metadata],
        offline: Callable[[], frozenset[tuple[str, int]]],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._offline = offline
        self._forms: OrderedDict[Form, _Topics] = OrderedDict()

    def encoded(self, form: Form, requested: Sequence[Requested] | None) -> Encoded | Awaitable[Encoded]:
        """These topics, or all; at once if there is little to encode."""
        topics = self._topics(form)
        if requested is None and topics.joined is not None:
            return topics.joined
        missing = topics.missing(requested)
        count = len(topics.metadata.topics) if requested is None else len(requested)
        if count > AT_ONCE or sum(len(topic.partitions) for topic in missing) > AT_ONCE:
            return self._in_slices(topics, requested, missing)
        to_the_end(topics.encode(missing))
        return to_the_end(topics.join(requested))

    def partition(self, topic: TopicRecord, index: int) -> MetadataResponsePartition:
        """One partition, as it is now."""
        return described_partition(topic, index, self._metadata().brokers, self._offline(), self._broker_id)

    async def _in_slices(
        self, topics: _Topics, requested: Sequence[Requested] | None, missing: Sequence[TopicRecord]
    ) -> Encoded:
        async with topics.encoding:
            await finish(topics.encode(missing))
            return await finish(topics.join(requested))

    def _topics(self, form: Form) -> _Topics:
        metadata, offline = self._metadata(), self._offline()
        newest = next(reversed(self._forms.values()), None)
        if newest is not None and not (newest.metadata is metadata and newest.offline == offline):
            for known, before in self._forms.items():
                self._forms[known] = _Topics(self._broker_id, known, metadata, offline, before)
        topics = self._forms.get(form)
        if topics is None:
            topics = self._forms[form] = _Topics(self._broker_id, form, metadata, offline, None)
            if len(self._forms) > MAX_FORMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(form)
        return topics


class _Topics:
    """The topics of one state, in one form. A new state has a new object; the old one may still be encoding."""

    def __init__(
        self,
        broker_id: int,
        form: Form,
        metadata: Metadata,
        offline: frozenset[tuple[str, int]],
        before: _Topics | None,
    ) -> None:
        self._broker_id = broker_id
        self._version, self._operations = form
        self.metadata = metadata
        self.offline = offline
        self.encoding = asyncio.Lock()
        self.joined: Encoded | None = None
        self._texts: dict[str, tuple[TopicRecord, bytes]] = {}
        if before is not None and before._resembles(metadata, offline):
            get = metadata.topics.get
            self._texts = {name: text for name, text in before._texts.items() if get(name) is text[0]}

    def _resembles(self, metadata: Metadata, offline: frozenset[tuple[str, int]]) -> bool:
        """Whether both states describe an unchanged topic alike."""
        return self.offline == offline and self.metadata.brokers.keys() == metadata.brokers.keys()

    def missing(self, requested: Sequence[Requested] | None) -> list[TopicRecord]:
        """The topics that are not encoded yet."""
        texts = self._texts
        if requested is None:
            return [topic for name, topic in self.metadata.topics.items() if name not in texts]
        return [topic for topic in requested if isinstance(topic, TopicRecord) and topic.name not in texts]

    def encode(self, topics: Sequence[TopicRecord]) -> Steps[None]:
        for topic in topics:
            yield
            if topic.name in self._texts:
                continue
            parts = []
            for index in range(len(topic.partitions)):
                parts.append(PARTITION.encode(self._version, self._partition(topic, index)))
                yield
            described = MetadataResponseTopic(
                ErrorCode.NONE, topic.name, topic.topic_id, is_internal(topic.name), _as_array(parts)
            )
            if self._operations is not None:
                described.topic_authorized_operations = self._operations
            self._texts[topic.name] = topic, TOPIC.encode(self._version, described)

    def _partition(self, topic: TopicRecord, index: int) -> MetadataResponsePartition:
        return described_partition(topic, index, self.metadata.brokers, self.offline, self._broker_id)

    def join(self, requested: Sequence[Requested] | None) -> Steps[Encoded]:
        texts = self._texts
        if requested is None:
            if self.joined is None:
                everything = [texts[name][1] for name in self.metadata.topics]
                self.joined = Encoded(len(everything), b"".join(everything))
            return self.joined
        parts = []
        for topic in requested:
            parts.append(
                texts[topic.name][1] if isinstance(topic, TopicRecord) else TOPIC.encode(self._version, topic)
            )
            yield
        return Encoded(len(parts), b"".join(parts))


def described_partition(
    topic: TopicRecord,
    index: int,
    alive: Collection[int],
    unusable: frozenset[tuple[str, int]],
    broker_id: int,
) -> MetadataResponsePartition:
    """``unusable``: partitions that broker ``broker_id`` cannot use."""
    record = topic.partitions[index]
    error, leader, isr = ErrorCode.NONE, record.leader, list(record.isr)
    offline = [replica for replica in record.replicas if replica not in alive]
    if (topic.name, index) in unusable:
        offline.append(broker_id)
    if leader in offline or leader not in alive:
        error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        isr = [replica for replica in isr if replica not in offline]
    return MetadataResponsePartition(
        error, index, leader, record.leader_epoch, list(record.replicas), isr, offline
    )


def _as_array(parts: list[bytes]) -> list[MetadataResponsePartition]:
    return Encoded(len(parts), b"".join(parts))  # type: ignore[return-value]
