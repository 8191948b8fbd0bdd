"""AddOffsetsToTxn (key 25): a transaction will commit offsets of this group (KIP-98).

v3 is flexible.
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
    key=25,
    name="AddOffsetsToTxn",
    versions=(0, 3),
    flexible=3,
    request=AddOffsetsToTxnRequest,
    response=AddOffsetsToTxnResponse,
)
