"""JoinGroup: a member joins, and waits until all have joined or the rebalance times out. See groups.classic.

From v4 a new dynamic member gets MEMBER_ID_REQUIRED and joins again with the id (KIP-394); from v9 a returning
static leader skips the assignment (KIP-814).
"""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import join_group
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

from ..groups.driver import GroupDriver
from ..groups.messages import Join
from ..network.handlers import RequestContext, handler
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

MEMBER_ID_REQUIRED_SINCE = 4
NULLABLE_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


@handler(join_group.API, rights=[Right(AclOperation.READ, ResourceType.GROUP, "the group")])
async def handle(
    authorizer: Authorizer, groups: GroupDriver, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse:
    version = context.version
    if not authorizer.allows(context.session, AclOperation.READ, ResourceType.GROUP, request.group_id):
        protocol = "" if version < NULLABLE_PROTOCOL_SINCE else None
        return JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, protocol_name=protocol)
    joined = await groups.join(
        Join(
            group_id=request.group_id,
            member_id=request.member_id,
            client_id=context.client_id or "",
            client_host=f"/{context.session.host}",
            session_timeout_ms=request.session_timeout_ms,
            # Version 0 had one timeout for both.
            rebalance_timeout_ms=request.session_timeout_ms if version == 0 else request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple({each.name: bytes(each.metadata) for each in request.protocols}.items()),
            instance_id=request.group_instance_id,
            member_id_required=version >= MEMBER_ID_REQUIRED_SINCE,
            may_skip_assignment=version >= SKIP_ASSIGNMENT_SINCE,
        )
    )
    protocol = joined.protocol
    if protocol is None and version < NULLABLE_PROTOCOL_SINCE:
        protocol = ""
    return JoinGroupResponse(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(member.member_id, member.instance_id, member.metadata)
            for member in joined.members
        ],
    )
