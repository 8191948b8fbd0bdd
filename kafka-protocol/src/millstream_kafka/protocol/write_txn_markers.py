"""WriteTxnMarkers (key 27): a coordinator ends transactions in the logs of a broker's partitions.

v1 is flexible; v2 has the version of transactions, which decides how the epoch of a marker is checked.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("int32")


class WritableTxnMarker(Struct):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2)


class WriteTxnMarkersRequest(Struct):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Struct):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Struct):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


API = Api(
    27,
    "WriteTxnMarkers",
    (1, 2),
    flexible=1,
    request=WriteTxnMarkersRequest,
    response=WriteTxnMarkersResponse,
)
