"""WriteTxnMarkers (key 27): a transaction coordinator has leaders end a transaction (KIP-98). Between brokers.

v1 is flexible.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("int32")


class WritableTxnMarker(Struct):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()


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
    key=27,
    name="WriteTxnMarkers",
    versions=(0, 1),
    flexible=1,
    request=WriteTxnMarkersRequest,
    response=WriteTxnMarkersResponse,
)
