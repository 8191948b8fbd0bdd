"""DescribeLogDirs (key 35): the log directories of a broker, and size and lag of their partitions (KIP-113).

v2 is flexible; v3 adds a top-level error; v4 the folder's total and usable bytes (KIP-827);
v5 whether it gets no new replicas (KIP-1066).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class DescribeLogDirsRequest(Struct):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=0)


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5)


class DescribeLogDirsResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


API = Api(
    35,
    "DescribeLogDirs",
    (1, 5),
    flexible=2,
    request=DescribeLogDirsRequest,
    response=DescribeLogDirsResponse,
)
