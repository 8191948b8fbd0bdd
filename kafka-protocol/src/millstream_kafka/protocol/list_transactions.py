"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).

v0 is flexible; v1 filters by duration (KIP-994), v2 by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int32, int64, string


class ListTransactionsRequest(Struct):
    state_filters: list[str] = array("string")
    producer_id_filters: list[int] = array("int64")
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable=2, default=None)


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array("string")
    transaction_states: list[TransactionState] = array(TransactionState)


API = Api(
    66,
    "ListTransactions",
    (0, 2),
    flexible=0,
    request=ListTransactionsRequest,
    response=ListTransactionsResponse,
)
