"""AddPartitionsToTxn (key 24): adds partitions to a transaction before records are written to them.

v2 allows PRODUCER_FENCED; v3 is flexible; v4 (KIP-890), for brokers, has several transactions, and may verify instead
of adding; v5 allows TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, boolean, int16, int32, int64, string

BATCHED_SINCE = 4
"""The first version for brokers."""


class AddPartitionsToTxnTopic(Struct):
    name: str = string()
    partitions: list[int] = array("int32")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(Struct):
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, since=4)
    transactional_id: str = string(until=3)
    producer_id: int = int64(until=3)
    producer_epoch: int = int16(until=3)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, since=4)
    results_by_topic: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, until=3)


API = Api(
    24,
    "AddPartitionsToTxn",
    (0, 5),
    flexible=3,
    request=AddPartitionsToTxnRequest,
    response=AddPartitionsToTxnResponse,
)
