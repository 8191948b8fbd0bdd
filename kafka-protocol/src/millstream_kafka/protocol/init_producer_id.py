"""InitProducerId (key 22): a producer id and epoch for idempotence; fences the older producer of a transactional id.

v2 is flexible; v3 sends the producer's current id and epoch, to raise it (KIP-360); v4 allows PRODUCER_FENCED;
v5 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, int16, int32, int64, string


class InitProducerIdRequest(Struct):
    transactional_id: str | None = string(nullable=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)


class InitProducerIdResponse(Struct):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


API = Api(
    22, "InitProducerId", (0, 5), flexible=2, request=InitProducerIdRequest, response=InitProducerIdResponse
)
