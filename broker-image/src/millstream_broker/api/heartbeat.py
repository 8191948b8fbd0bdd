"""Heartbeat: keeps a member alive, and tells it that its group is rebalancing (REBALANCE_IN_PROGRESS). See
groups.classic."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import heartbeat
from millstream_kafka.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_group


@handler(heartbeat.API, rights=[on_group(AclOperation.READ)])
def handle(groups: GroupDriver, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    error = groups.heartbeat(
        request.group_id, request.member_id, request.generation_id, request.group_instance_id
    )
    return HeartbeatResponse(error_code=error)
