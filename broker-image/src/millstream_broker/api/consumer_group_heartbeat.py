"""ConsumerGroupHeartbeat: refused, so that a client with group.protocol=consumer says so instead of waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import consumer_group_heartbeat
from ..protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from ..protocol.errors import ErrorCode
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(consumer_group_heartbeat.API)
def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="This broker has classic groups only: set group.protocol=classic.",
    )
