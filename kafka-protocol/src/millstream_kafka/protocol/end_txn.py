"""EndTxn (key 26): commits or aborts a transaction.

v2 allows PRODUCER_FENCED; v3 is flexible; v4 allows TRANSACTION_ABORTABLE; v5 raises the epoch, and returns the
producer's id and epoch for the next transaction (KIP-890).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, boolean, int16, int32, int64, string

EPOCH_SINCE = 5
"""The first version that raises the epoch."""


class EndTxnRequest(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1)
    producer_epoch: int = int16(since=5, default=-1)


API = Api(26, "EndTxn", (0, 5), flexible=3, request=EndTxnRequest, response=EndTxnResponse)
