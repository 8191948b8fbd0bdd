"""DescribeUserScramCredentials: no user has credentials."""

from __future__ import annotations

from collections import Counter

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_user_scram_credentials
from millstream_kafka.protocol.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_cluster


@handler(describe_user_scram_credentials.API, rights=[on_cluster(AclOperation.DESCRIBE)])
def handle(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    requested = Counter(user.name for user in request.users or ())
    results = [_of(name, count) for name, count in requested.items()]
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def _of(name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            name, ErrorCode.DUPLICATE_RESOURCE, f"The request names the user {name} more than once."
        )
    return DescribeUserScramCredentialsResult(
        name, ErrorCode.RESOURCE_NOT_FOUND, f"The user {name} has no SCRAM credentials."
    )
