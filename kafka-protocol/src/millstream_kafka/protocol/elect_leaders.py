"""ElectLeaders (key 43): elects the preferred leader (election_type 0) or an unclean one (1) (KIP-460).

v1 adds election_type and a top-level error; v2 is flexible.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, string


class TopicPartitions(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class ElectLeadersRequest(Struct):
    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=0)
    timeout_ms: int = int32(default=60000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


API = Api(43, "ElectLeaders", (0, 2), flexible=2, request=ElectLeadersRequest, response=ElectLeadersResponse)
