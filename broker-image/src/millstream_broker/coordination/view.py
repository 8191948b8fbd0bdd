"""Merges the controller's UpdateMetadata into the cluster as one broker knows it. Pure.

A request may contain thousands of partitions. Reading it is most of the work and needs no state, so it is done in steps
(`read`); the result is then merged at once (`merged`).

Each change of a partition's state raises its node's version, so of two records of a partition (of one topic id) the
one with the higher version is newer, whichever broker sent it; of equal ones the last counts, because its replicas may
have changed. A topic's configuration comes from the tree, not from the controller.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from millstream_kafka.protocol.update_metadata import (
    LEADER_DURING_DELETE,
    SECURITY_PROTOCOLS,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)

from ..config.config import Listener
from ..runtime.steps import Steps
from . import NO_LEADER, BrokerRecord, ClusterState, PartitionRecord, TopicRecord, shared
from .tree import NO_STATE

UNKNOWN = PartitionRecord((), NO_LEADER, -1, (), NO_STATE)
"""A partition that must exist, because one with a higher number does, but was not announced yet."""


@dataclass(frozen=True, slots=True)
class AnnouncedTopic:
    """A topic in a request: its partitions by index; None if it is being deleted."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionRecord] | None


def read(request: UpdateMetadataRequest) -> Steps[list[AnnouncedTopic]]:
    """Read the topics of a request. Yields after each partition."""
    read = []
    for topic in request.topic_states:
        partitions: dict[int, PartitionRecord] = {}
        for partition in topic.partition_states:
            if partition.leader == LEADER_DURING_DELETE:
                read.append(AnnouncedTopic(topic.topic_name, topic.topic_id, None))
                break
            partitions[partition.partition_index] = _partition(partition)
            yield
        else:
            read.append(AnnouncedTopic(topic.topic_name, topic.topic_id, partitions))
    return read


def merged(
    state: ClusterState,
    request: UpdateMetadataRequest,
    read: Iterable[AnnouncedTopic],
    config_of: Callable[[str], Mapping[str, str]],
) -> ClusterState:
    """The cluster after an update; unchanged records stay the same objects."""
    topics = dict(state.topics)
    for announced in read:
        if announced.partitions is None:
            if announced.name in topics and topics[announced.name].topic_id == announced.topic_id:
                del topics[announced.name]
        else:
            topics[announced.name] = _topic(
                topics.get(announced.name), announced, announced.partitions, config_of
            )
    brokers = {
        announced.id: _broker(state.brokers.get(announced.id), announced)
        for announced in request.live_brokers
    }
    return replace(state, topics=topics, brokers=brokers, controller_id=request.controller_id)


def with_partition(
    state: ClusterState, name: str, index: int, record: PartitionRecord, *, keep_replicas: bool = False
) -> ClusterState:
    """The cluster with a partition's newer record; unchanged if it knows a newer one or has no such partition."""
    topic = state.topics.get(name)
    if topic is None or index >= len(topic.partitions) or topic.partitions[index].version >= record.version:
        return state
    if keep_replicas:
        record = replace(record, replicas=topic.partitions[index].replicas)
    partitions = (*topic.partitions[:index], record, *topic.partitions[index + 1 :])
    return replace(state, topics={**state.topics, name: replace(topic, partitions=partitions)})


def with_configs(
    state: ClusterState,
    entities: Iterable[str],
    of_topics: Mapping[str, Mapping[str, str]],
    of_brokers: Mapping[int | None, Mapping[str, str]],
) -> ClusterState:
    """The configuration of these topics (`topics/T`) and of all brokers is new."""
    topics = dict(state.topics)
    for entity in entities:
        kind, _, name = entity.partition("/")
        if (
            kind == "topics"
            and name in topics
            and of_topics.get(name, topics[name].config) != topics[name].config
        ):
            topics[name] = replace(topics[name], config=of_topics[name])
    brokers = state.broker_configs
    return replace(
        state, topics=topics, broker_configs=brokers if of_brokers == brokers else dict(of_brokers)
    )


def _topic(
    before: TopicRecord | None,
    announced: AnnouncedTopic,
    newer: Mapping[int, PartitionRecord],
    config_of: Callable[[str], Mapping[str, str]],
) -> TopicRecord:
    if before is None or before.topic_id != announced.topic_id:
        before = TopicRecord(announced.name, announced.topic_id, (), config_of(announced.name))
    partitions = list(before.partitions)
    for index, record in newer.items():
        partitions += [UNKNOWN] * (index + 1 - len(partitions))
        known = partitions[index]
        if record is not known and record.version >= known.version and record != known:
            partitions[index] = record
    if len(partitions) == len(before.partitions) and all(map(_is, partitions, before.partitions)):
        return before
    return replace(before, partitions=tuple(partitions))


def _partition(announced: UpdateMetadataPartitionState) -> PartitionRecord:
    return shared(
        PartitionRecord(
            tuple(announced.replicas),
            announced.leader,
            announced.leader_epoch,
            tuple(announced.isr),
            announced.zk_version,
            announced.controller_epoch,
            elr=tuple(announced.elr),
            compared=announced.compared,
        )
    )


def _broker(before: BrokerRecord | None, announced: UpdateMetadataBroker) -> BrokerRecord:
    listeners = tuple(
        Listener(
            endpoint.listener, endpoint.host, endpoint.port, SECURITY_PROTOCOLS[endpoint.security_protocol]
        )
        for endpoint in announced.endpoints
    )
    now = BrokerRecord(announced.id, listeners, announced.rack, announced.epoch)
    return before if before == now else now


def _is(one: object, other: object) -> bool:
    return one is other
