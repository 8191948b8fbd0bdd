"""ConsumerGroupHeartbeat (key 68): members of the newer group protocol; brokers respond with an error (KIP-848).

v0 is flexible; v1 subscribes by a regular expression that the broker evaluates.
"""

from __future__ import annotations

import uuid

from .api import Api
from .schema import Struct, array, int8, int16, int32, string, uuid_


class TopicPartitions(Struct):
    topic_id: uuid.UUID = uuid_()
    partitions: list[int] = array("int32")


class ConsumerGroupHeartbeatRequest(Struct):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable=0, default=None)
    rack_id: str | None = string(nullable=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array("string", nullable=0, default=None)
    subscribed_topic_regex: str | None = string(since=1, nullable=1, default=None)
    server_assignor: str | None = string(nullable=0, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=0, default=None)


class ConsumerGroupHeartbeatResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    member_id: str | None = string(nullable=0, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: int = int8(default=-1)
    """-1 is null: this broker assigns nothing."""


API = Api(
    68,
    "ConsumerGroupHeartbeat",
    (0, 1),
    flexible=0,
    request=ConsumerGroupHeartbeatRequest,
    response=ConsumerGroupHeartbeatResponse,
)
