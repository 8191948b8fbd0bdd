"""AddOffsetsToTxn (key 25): adds a group's partition of __consumer_offsets to a transaction.

v2 allows PRODUCER_FENCED; v3 is flexible; v4 allows TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, int16, int32, int64, string


class AddOffsetsToTxnRequest(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()


API = Api(
    25,
    "AddOffsetsToTxn",
    (0, 4),
    flexible=3,
    request=AddOffsetsToTxnRequest,
    response=AddOffsetsToTxnResponse,
)
