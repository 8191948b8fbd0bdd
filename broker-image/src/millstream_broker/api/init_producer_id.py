"""InitProducerId: an id for an idempotent producer, and a new epoch for one that has an id (KIP-360).

Ids come in blocks from coordination, so none is ever given twice. Transactional producers are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import init_producer_id
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(init_producer_id.API)
async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        code = ErrorCode.INVALID_REQUEST if not request.transactional_id else ErrorCode.UNSUPPORTED_VERSION
        raise ApiError(code, "transactions are not supported")
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
