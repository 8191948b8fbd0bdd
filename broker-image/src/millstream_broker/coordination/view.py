"""What the controller tells, put together: UpdateMetadata into the cluster as one broker knows it. Pure.

Each change of a partition's state raises its node's version, so of two records of a partition (of one topic id) the
one with the higher version is newer, whoever told it; of equals the one told last counts, for its replicas may have
changed. A topic's configuration comes from the tree, not from the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from millstream_kafka.protocol.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

from ..config import Listener
from . import NO_LEADER, BrokerRecord, ClusterState, PartitionRecord, TopicRecord
from .tree import NO_STATE

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""By their numbers in the request."""
UNKNOWN = PartitionRecord((), NO_LEADER, -1, (), NO_STATE)
"""A partition that must be there, as one with a higher number is, and that nothing was told of yet."""


def merged(
    state: ClusterState, request: UpdateMetadataRequest, config_of: Callable[[str], Mapping[str, str]]
) -> ClusterState:
    """The cluster after what was told; records that did not change stay the same objects."""
    topics = dict(state.topics)
    for told in request.topic_states:
        if any(one.leader == LEADER_DURING_DELETE for one in told.partition_states):
            topics.pop(told.topic_name, None)
        else:
            topics[told.topic_name] = _topic(topics.get(told.topic_name), told, config_of)
    brokers = {told.id: _broker(state.brokers.get(told.id), told) for told in request.live_brokers}
    return replace(state, topics=topics, brokers=brokers, controller_id=request.controller_id)


def with_partition(
    state: ClusterState, name: str, index: int, record: PartitionRecord, *, keep_replicas: bool = False
) -> ClusterState:
    """The cluster with a partition's newer record; as it was, where it knows a newer one or has no such partition."""
    topic = state.topics.get(name)
    if topic is None or index >= len(topic.partitions) or topic.partitions[index].version >= record.version:
        return state
    if keep_replicas:
        record = replace(record, replicas=topic.partitions[index].replicas)
    partitions = (*topic.partitions[:index], record, *topic.partitions[index + 1 :])
    return replace(state, topics={**state.topics, name: replace(topic, partitions=partitions)})


def with_config(topic: TopicRecord, config: Mapping[str, str]) -> TopicRecord:
    return topic if topic.config == config else replace(topic, config=config)


def _topic(
    before: TopicRecord | None, told: UpdateMetadataTopicState, config_of: Callable[[str], Mapping[str, str]]
) -> TopicRecord:
    if before is None or before.topic_id != told.topic_id:
        before = TopicRecord(told.topic_name, told.topic_id, (), config_of(told.topic_name))
    partitions = list(before.partitions)
    for one in told.partition_states:
        partitions += [UNKNOWN] * (one.partition_index + 1 - len(partitions))
        partitions[one.partition_index] = _partition(partitions[one.partition_index], one)
    if len(partitions) == len(before.partitions) and all(map(_is, partitions, before.partitions)):
        return before
    return replace(before, partitions=tuple(partitions))


def _partition(before: PartitionRecord, told: UpdateMetadataPartitionState) -> PartitionRecord:
    if told.zk_version < before.version:
        return before
    record = PartitionRecord(
        tuple(told.replicas),
        told.leader,
        told.leader_epoch,
        tuple(told.isr),
        told.zk_version,
        told.controller_epoch,
        elr=tuple(told.elr),
    )
    return before if record == before else record


def _broker(before: BrokerRecord | None, told: UpdateMetadataBroker) -> BrokerRecord:
    listeners = tuple(
        Listener(one.listener, one.host, one.port, SECURITY_PROTOCOLS[one.security_protocol])
        for one in told.endpoints
    )
    now = BrokerRecord(told.id, listeners, told.rack, told.epoch)
    return before if before == now else now


def _is(one: object, other: object) -> bool:
    return one is other
