"""DeleteGroups: delete empty groups with their offsets (KIP-229); responds once the deletion is stored."""

from __future__ import annotations

from collections.abc import Iterator

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import delete_groups
from millstream_kafka.protocol.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.audit.administration import Changed

DELETE, GROUP = AclOperation.DELETE, ResourceType.GROUP


def _changes(request: DeleteGroupsRequest) -> Iterator[Changed]:
    for name in request.groups_names:
        yield Changed("Group", name)


@handler(delete_groups.API, changes=_changes, rights=[Right(DELETE, GROUP, "each group")])
async def handle(
    authorizer: Authorizer, groups: GroupDriver, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(
                group_id,
                await groups.delete_group(group_id)
                if authorizer.allows(context.session, DELETE, GROUP, group_id)
                else ErrorCode.GROUP_AUTHORIZATION_FAILED,
            )
            async for group_id in cooperatively(dict.fromkeys(request.groups_names))
        ]
    )
