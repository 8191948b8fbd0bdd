"""ListGroups: the groups that this broker coordinates, from v4 those in certain states, from v5 of certain types."""

from __future__ import annotations

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import list_groups
from millstream_kafka.protocol.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

from ..groups.driver import GroupDriver
from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right

DESCRIBE = AclOperation.DESCRIBE
CLASSIC = "classic"
"""The type of every group here (KIP-848 has others)."""


@handler(
    list_groups.API,
    ends_with_connection=True,
    rights=[
        Right(
            DESCRIBE,
            ResourceType.CLUSTER,
            "the cluster, for all groups",
            without="only groups that it may describe",
        ),
        Right(DESCRIBE, ResourceType.GROUP, "each group", without="the group is left out"),
    ],
)
def handle(
    authorizer: Authorizer, groups: GroupDriver, context: RequestContext, request: ListGroupsRequest
) -> Steps[ListGroupsResponse]:
    error, found = groups.list_groups(request.states_filter)
    if request.types_filter and CLASSIC not in (each.casefold() for each in request.types_filter):
        found = []
    session, listed = context.session, []
    may_all = authorizer.permits_on_cluster(session, DESCRIBE)
    for group in found:
        if may_all or authorizer.permits(session, DESCRIBE, ResourceType.GROUP, group.group_id):
            listed.append(ListedGroup(group.group_id, group.protocol_type, group.state, CLASSIC))
        yield
    return ListGroupsResponse(error_code=error, groups=listed)
