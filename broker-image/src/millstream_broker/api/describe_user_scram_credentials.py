"""DescribeUserScramCredentials: which mechanisms users have a credential of, and its iterations, never its keys."""

from __future__ import annotations

from collections import Counter

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_user_scram_credentials
from millstream_kafka.protocol.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..network.handlers import RequestContext, handler
from ..runtime.steps import Steps
from ..security.acl.rights import on_cluster
from ..security.scram_credentials import ScramCredentials


@handler(describe_user_scram_credentials.API, rights=[on_cluster(AclOperation.DESCRIBE)])
def handle(
    credentials: ScramCredentials, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Steps[DescribeUserScramCredentialsResponse]:
    results = []
    if request.users:
        for name, count in Counter(user.name for user in request.users).items():
            results.append(_of(credentials, name, count))
            yield
    else:
        for name in credentials.users():
            results.append(_of(credentials, name, 1))
            yield
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def _of(credentials: ScramCredentials, name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return DescribeUserScramCredentialsResult(name, ErrorCode.DUPLICATE_RESOURCE, message)
    infos = [
        CredentialInfo(mechanism, credential.iterations)
        for mechanism, credential in (credentials.of(name) if name else {}).items()
    ]
    if not infos:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return DescribeUserScramCredentialsResult(name, ErrorCode.RESOURCE_NOT_FOUND, message)
    return DescribeUserScramCredentialsResult(name, error_message="", credential_infos=infos)
