"""EndTxn (key 26): commits or aborts a transaction (KIP-98).

v3 is flexible. Kafka's v5 raises the epoch with every transaction (KIP-890), and is not advertised.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, boolean, int16, int32, int64, string


class EndTxnRequest(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()


API = Api(
    key=26,
    name="EndTxn",
    versions=(0, 3),
    flexible=3,
    request=EndTxnRequest,
    response=EndTxnResponse,
)
