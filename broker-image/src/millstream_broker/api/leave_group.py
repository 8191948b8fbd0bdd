"""LeaveGroup: members leave at once. From v3 several in a request, static ones by their instance id alone."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import leave_group
from millstream_kafka.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

from ..groups.driver import GroupDriver
from ..groups.messages import LeavingMember
from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_group

BATCHED_SINCE = 3


@handler(leave_group.API, rights=[on_group(AclOperation.READ)])
def handle(groups: GroupDriver, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if context.version < BATCHED_SINCE:
        error, errors = groups.leave(request.group_id, [LeavingMember(request.member_id)])
        return LeaveGroupResponse(error_code=error or errors[0])
    leaving = [LeavingMember(each.member_id, each.group_instance_id) for each in request.members]
    error, errors = groups.leave(request.group_id, leaving)
    if error:
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        members=[
            MemberResponse(member.member_id, member.instance_id, of_member)
            for member, of_member in zip(leaving, errors, strict=True)
        ]
    )
