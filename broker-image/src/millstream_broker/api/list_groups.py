"""ListGroups: the groups that this broker coordinates, from v4 those in certain states, from v5 of certain types."""

from __future__ import annotations

from millstream_kafka.protocol import list_groups
from millstream_kafka.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps

CLASSIC = "classic"
"""The type of every group here (KIP-848 has others)."""


@handler(list_groups.API, ends_with_connection=True)
def handle(
    groups: GroupDriver, context: RequestContext, request: ListGroupsRequest
) -> Steps[ListGroupsResponse]:
    error, found = groups.list_groups(request.states_filter)
    if request.types_filter and CLASSIC not in (each.casefold() for each in request.types_filter):
        found = []
    listed = []
    for group in found:
        listed.append(ListedGroup(group.group_id, group.protocol_type, group.state, CLASSIC))
        yield
    return ListGroupsResponse(error_code=error, groups=listed)
