"""SyncGroup: the leader submits all assignments, each member waits for its own. See groups.classic.

From v5 a member must repeat the protocol type and name it got at the join (KIP-559).
"""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import sync_group
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.sync_group import SyncGroupRequest, SyncGroupResponse

from ..groups.driver import GroupDriver
from ..groups.messages import Sync
from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_group

PROTOCOL_SINCE = 5


@handler(sync_group.API, rights=[on_group(AclOperation.READ)])
async def handle(
    groups: GroupDriver, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse:
    if context.version >= PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    synced = await groups.sync(
        Sync(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
        )
    )
    return SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
