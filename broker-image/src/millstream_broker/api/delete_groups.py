"""DeleteGroups: empty groups go, with their offsets (KIP-229); answered when that is stored."""

from __future__ import annotations

from ..groups.driver import GroupDriver
from ..handlers import RequestContext, handler
from ..protocol import delete_groups
from ..protocol.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ..slices import turns


@handler(delete_groups.API)
async def handle(
    groups: GroupDriver, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id, await groups.delete_group(group_id))
            async for group_id in turns(dict.fromkeys(request.groups_names))
        ]
    )
