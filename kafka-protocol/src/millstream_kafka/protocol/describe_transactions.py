"""DescribeTransactions (key 65): the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, int64, string


class DescribeTransactionsRequest(Struct):
    transactional_ids: list[str] = array("string")


class TopicData(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class DescribedTransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Struct):
    throttle_time_ms: int = int32()
    transaction_states: list[DescribedTransactionState] = array(DescribedTransactionState)


API = Api(
    65,
    "DescribeTransactions",
    (0, 0),
    flexible=0,
    request=DescribeTransactionsRequest,
    response=DescribeTransactionsResponse,
)
