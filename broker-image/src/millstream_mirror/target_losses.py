"""Notices that the target has lost records that it had acknowledged, for lanes that have nothing to send.

A target that was restored from an older copy, or elected an unclean leader, refuses a lane's next records, or
acknowledges them at a lower offset. Without next records, the lane would report that the target has everything.

A fetch at the offset up to which records are acknowledged is out of range if the leader's log ends before. Unlike the
high watermark, which a new leader learns a little later, this is never lower than what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream_kafka.topic_partition import TopicPartition

from .lane import Lane
from .reading import LATEST, offset_at
from .topics import PARTITIONS_AT_ONCE, in_parts, leading


async def find_lost(at_target: ClusterClient, lanes: Collection[Lane]) -> dict[Lane, int]:
    """Idle lanes whose records the target has lost, and the end of its log for each.

    Brokers that do not respond are left out. Raises BrokerError, ApiError."""
    idle = {lane.target: (lane, lane.acknowledged) for lane in lanes if lane.is_idle}
    by_node: dict[int, list[TopicPartition]] = {}
    for where, node in (await leading(at_target, idle.keys())).leaders.items():
        by_node.setdefault(node, []).append(where)
    lost = {}
    for node, of_node in by_node.items():
        for some in in_parts(of_node, lambda _: 1, PARTITIONS_AT_ONCE):
            for where in await _out_of_range(
                at_target, node, {one: idle[one][1].target_offset for one in some}
            ):
                lane, before = idle[where]
                end = await offset_at(at_target, where, LATEST)
                # It may also have deleted older records: then it begins, and ends, after this offset.
                if end < before.target_offset and lane.is_idle and lane.acknowledged is before:
                    lost[lane] = end
    return lost


async def _out_of_range(
    at_target: ClusterClient, node: int, offsets: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """The partitions whose logs do not reach these offsets, or begin after them."""
    topics: dict[str, FetchTopic] = {}
    for (topic, partition), offset in offsets.items():
        one = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1)
        topics.setdefault(topic, FetchTopic(topic, partitions=[])).partitions.append(one)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=list(topics.values()))
    try:
        response = await at_target.call_node(node, fetch.BY_NAME, request)
    except BrokerError:
        at_target.forget_leaders()
        return []
    found = []
    for of_topic in response.responses:
        for answer in of_topic.partitions:
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                found.append((of_topic.topic, answer.partition_index))
            elif answer.error_code:  # the next look asks the new leader
                at_target.forget_leaders(of_topic.topic)
    return found
