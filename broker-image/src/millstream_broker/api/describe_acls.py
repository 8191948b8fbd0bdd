"""DescribeAcls: the access rules that a filter matches; SECURITY_DISABLED without an authorizer."""

from __future__ import annotations

from typing import Any

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_acls
from millstream_kafka.protocol.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination.coordination import Coordination
from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.filters import AclFilter
from ..security.acl.rights import on_cluster

NO_AUTHORIZER = "No Authorizer is configured on the broker"


@handler(describe_acls.API, rights=[on_cluster(AclOperation.DESCRIBE)])
def handle(
    authorizer: Authorizer, coordination: Coordination, context: RequestContext, request: DescribeAclsRequest
) -> Steps[Any]:
    if not authorizer.is_enabled:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    wanted = AclFilter.of(request)
    resources = []
    for pattern, entries in list(coordination.acls.rules.items()):
        yield
        if not wanted.matches_pattern(pattern):
            continue
        described = [
            AclDescription(entry.principal, entry.host, entry.operation, entry.permission_type)
            for entry in sorted(entries)
            if wanted.matches_entry(entry)
        ]
        if described:
            resources.append(
                DescribeAclsResource(pattern.resource_type, pattern.name, pattern.pattern_type, described)
            )
    return DescribeAclsResponse(error_message="", resources=resources)
