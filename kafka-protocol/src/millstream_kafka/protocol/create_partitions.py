"""CreatePartitions (key 37): adds partitions to topics; count is the new total (KIP-195).

v2 is flexible; v3 allows THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array("int32")


class CreatePartitionsTopic(Struct):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=0)


class CreatePartitionsRequest(Struct):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class CreatePartitionsResponse(Struct):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


API = Api(
    37,
    "CreatePartitions",
    (0, 3),
    flexible=2,
    request=CreatePartitionsRequest,
    response=CreatePartitionsResponse,
)
