"""ControlledShutdown (key 7): a stopping broker makes the controller move its leaders away.

Kafka's v3, from the time of ZooKeeper (KIP-380 added the broker epoch; Kafka 4 dropped the request). The response names
the partitions that the broker still leads because no other broker can; the broker repeats the request until there are
none, or a deadline passes.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, int64, string


class ControlledShutdownRequest(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class RemainingPartition(Struct):
    topic_name: str = string()
    partition_index: int = int32()


class ControlledShutdownResponse(Struct):
    error_code: int = int16()
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition)


API = Api(
    7,
    "ControlledShutdown",
    (3, 3),
    flexible=3,
    request=ControlledShutdownRequest,
    response=ControlledShutdownResponse,
)
