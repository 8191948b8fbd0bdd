"""AddPartitionsToTxn (key 24): a transaction will write to these partitions (KIP-98).

v3 is flexible. Kafka's v4 and later batch the requests of brokers for one another, and are not advertised.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, int64, string


class AddPartitionsToTxnTopic(Struct):
    name: str = string()
    partitions: list[int] = array("int32")


class AddPartitionsToTxnRequest(Struct):
    v3_and_below_transactional_id: str = string()
    v3_and_below_producer_id: int = int64()
    v3_and_below_producer_epoch: int = int16()
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResponse(Struct):
    throttle_time_ms: int = int32()
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


API = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=(0, 3),
    flexible=3,
    request=AddPartitionsToTxnRequest,
    response=AddPartitionsToTxnResponse,
)
