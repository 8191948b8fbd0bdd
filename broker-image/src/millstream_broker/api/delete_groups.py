"""DeleteGroups: empty groups go, with their offsets (KIP-229); answered when that is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import delete_groups
from ..protocol.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ..slices import turns
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(delete_groups.API)
async def handle(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id, await broker.groups.delete_group(group_id))
            async for group_id in turns(dict.fromkeys(request.groups_names))
        ]
    )
