"""DescribeGroups: state, protocol and members; a group that does not exist is Dead, from v6 not found."""

from __future__ import annotations

from millstream_kafka.protocol import describe_groups
from millstream_kafka.protocol.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..groups.driver import GroupDriver
from ..groups.group import GroupState
from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps

READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11
GROUP_OPERATIONS = sum(
    1 << operation for operation in (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
)
NOT_ASKED = -(2**31)
NOT_FOUND_SINCE = 6


@handler(describe_groups.API, ends_with_connection=True)
def handle(
    groups: GroupDriver, context: RequestContext, request: DescribeGroupsRequest
) -> Steps[DescribeGroupsResponse]:
    described = []
    for group_id in request.groups:
        described.append(_describe(groups, context.version, group_id, request.include_authorized_operations))
        yield
    return DescribeGroupsResponse(groups=described)


def _describe(groups: GroupDriver, version: int, group_id: str, with_operations: bool) -> DescribedGroup:
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
        GROUP_OPERATIONS if with_operations and not group.error else NOT_ASKED,
    )
