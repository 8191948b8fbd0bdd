"""DescribeGroups: state, protocol and members; a group that does not exist is Dead, from v6 not found."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import describe_groups
from millstream_kafka.protocol.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..groups.driver import GroupDriver
from ..groups.group import GroupState
from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

NOT_ASKED = -(2**31)
NOT_FOUND_SINCE = 6


@handler(
    describe_groups.API,
    ends_with_connection=True,
    rights=[Right(AclOperation.DESCRIBE, ResourceType.GROUP, "each group")],
)
def handle(
    authorizer: Authorizer, groups: GroupDriver, context: RequestContext, request: DescribeGroupsRequest
) -> Steps[DescribeGroupsResponse]:
    described = []
    for group_id in request.groups:
        try:
            authorizer.check(context.session, AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        except ApiError as error:
            described.append(DescribedGroup(error.code, None, group_id, ""))
        else:
            operations = NOT_ASKED
            if request.include_authorized_operations:
                operations = authorizer.operations(context.session, ResourceType.GROUP, group_id)
            described.append(_describe(groups, context.version, group_id, operations))
        yield
    return DescribeGroupsResponse(groups=described)


def _describe(groups: GroupDriver, version: int, group_id: str, operations: int) -> DescribedGroup:
    group = groups.describe(group_id)
    if version >= NOT_FOUND_SINCE and not group.error and group.state is GroupState.DEAD:
        return DescribedGroup(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.", group_id, GroupState.DEAD
        )
    return DescribedGroup(
        group.error,
        None,
        group.group_id,
        "" if group.error else group.state,
        group.protocol_type,
        group.protocol,
        [
            DescribedGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata,
                member.assignment,
            )
            for member in group.members
        ],
        NOT_ASKED if group.error else operations,
    )
