"""ConsumerGroupHeartbeat: refused, so that a client with group.protocol=consumer fails with an error instead of
waiting."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import consumer_group_heartbeat
from millstream_kafka.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_group


@handler(consumer_group_heartbeat.API, rights=[on_group(AclOperation.READ)])
def handle(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="This broker has classic groups only: set group.protocol=classic.",
    )
