"""StopReplica (key 5): the controller stops replicas on a broker, and deletes some of their logs.

Kafka's v3, from the time of ZooKeeper (KIP-570 added the leader epoch; Kafka 4 dropped the request). A request with an
older leader epoch than the replica's gets FENCED_LEADER_EPOCH. Epoch -2 means that the topic is being deleted,
and -1 that the epoch is unknown: both apply whatever the replica's epoch. `topic_id` is ours: a log of another topic id
is not deleted.
"""

from __future__ import annotations

from uuid import UUID

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string, uuid_

EPOCH_DURING_DELETE = -2


class StopReplicaPartitionState(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32(default=-1)
    delete_partition: bool = boolean()


class StopReplicaTopicState(Struct):
    topic_name: str = string()
    partition_states: list[StopReplicaPartitionState] = array(StopReplicaPartitionState)
    topic_id: UUID = uuid_(tag=10000)


class StopReplicaRequest(Struct):
    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64(default=-1)
    topic_states: list[StopReplicaTopicState] = array(StopReplicaTopicState)


class StopReplicaPartitionError(Struct):
    topic_name: str = string()
    partition_index: int = int32()
    error_code: int = int16()


class StopReplicaResponse(Struct):
    error_code: int = int16()
    partition_errors: list[StopReplicaPartitionError] = array(StopReplicaPartitionError)


API = Api(5, "StopReplica", (3, 3), flexible=2, request=StopReplicaRequest, response=StopReplicaResponse)
