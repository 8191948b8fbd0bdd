"""UpdateMetadata (key 6): the controller sends leaders, replicas and live brokers to a broker.

Kafka's v7, from the time of ZooKeeper (KIP-516 added the topic ids; Kafka 4 dropped the request). A request has the
topics and partitions that changed, and always all live brokers. `leader` -2 means that the topic is being deleted
(LEADER_DURING_DELETE): the partition leaves the metadata. A response means that the broker has applied the request.

`elr` is ours, a tagged field that others skip: the replicas outside the ISR that have every acknowledged record
(KIP-966), because the leader writes them back beside the ISR. So are `compared`, the leader epoch from which on logs
are one history again after coordination was restored from an older copy, and `epoch`: the broker epoch of a
registration, by which a leader recognises followers of an earlier registration.

The elements of all arrays together are bounded (`api.MAX_ELEMENTS`), so more than about 20,000 partitions need
several requests.
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import Struct, array, int16, int32, int64, string, uuid_

LEADER_DURING_DELETE = -2
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""By their numbers."""


class UpdateMetadataPartitionState(Struct):
    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array("int32")
    zk_version: int = int32()
    replicas: list[int] = array("int32")
    offline_replicas: list[int] = array("int32")
    elr: list[int] = array("int32", tag=10000)
    compared: int = int32(tag=10001, default=-1)


class UpdateMetadataTopicState(Struct):
    topic_name: str = string()
    topic_id: UUID = uuid_()
    partition_states: list[UpdateMetadataPartitionState] = array(UpdateMetadataPartitionState)


class UpdateMetadataEndpoint(Struct):
    port: int = int32()
    host: str = string()
    listener: str = string()
    security_protocol: int = int16()


class UpdateMetadataBroker(Struct):
    id: int = int32()
    endpoints: list[UpdateMetadataEndpoint] = array(UpdateMetadataEndpoint)
    rack: str | None = string(nullable=0)
    epoch: int = int64(tag=10000, default=-1)


class UpdateMetadataRequest(Struct):
    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64(default=-1)
    topic_states: list[UpdateMetadataTopicState] = array(UpdateMetadataTopicState)
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker)


class UpdateMetadataResponse(Struct):
    error_code: int = int16()


API = Api(
    6, "UpdateMetadata", (7, 7), flexible=6, request=UpdateMetadataRequest, response=UpdateMetadataResponse
)
