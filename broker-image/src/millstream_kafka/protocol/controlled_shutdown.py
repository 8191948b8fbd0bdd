"""ControlledShutdown (key 7): a stopping broker has the controller move its leaders away.

Kafka's v3, of ZooKeeper's time (KIP-380 added the broker epoch; Kafka 4 has dropped the request). The answer names the
partitions that the broker still leads, as nobody else can; a broker asks again until there are none, or its patience
ends.
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
