"""Heartbeat: a member is alive; it learns that its group rebalances (REBALANCE_IN_PROGRESS). See groups.membership."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import heartbeat
from ..protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(heartbeat.API)
def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    error = broker.groups.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return HeartbeatResponse(error_code=error)
