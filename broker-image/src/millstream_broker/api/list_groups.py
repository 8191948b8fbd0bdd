"""ListGroups: the groups that this broker coordinates, from v4 those in certain states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import list_groups
from ..protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from . import RequestContext, handler

if TYPE_CHECKING:
    from ..broker import Broker


@handler(list_groups.API)
def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    error, groups = broker.groups.list_groups(request.states_filter)
    return ListGroupsResponse(
        error_code=error,
        groups=[ListedGroup(group.group_id, group.protocol_type, group.state) for group in groups],
    )
