"""DeleteGroups: delete empty groups with their offsets (KIP-229); responds once the deletion is stored."""

from __future__ import annotations

from millstream_kafka.protocol import delete_groups
from millstream_kafka.protocol.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively


@handler(delete_groups.API)
async def handle(
    groups: GroupDriver, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id, await groups.delete_group(group_id))
            async for group_id in cooperatively(dict.fromkeys(request.groups_names))
        ]
    )
