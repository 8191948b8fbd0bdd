"""UpdateMetadata: what the controller tells; answered when this broker does it.

An older controller is refused with STALE_CONTROLLER_EPOCH, and what is meant for an older registration of this broker
with STALE_BROKER_EPOCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import update_metadata
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(update_metadata.API)
async def handle(
    broker: Broker, context: RequestContext, request: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    if broker.cluster is None:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    await broker.cluster.update(request)
    return UpdateMetadataResponse()
