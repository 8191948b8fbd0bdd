"""CreateAcls: add access rules; SECURITY_DISABLED without an authorizer. Any broker stores them.

Each rule succeeds or fails by itself; one that exists already succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from millstream_kafka.acl import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from millstream_kafka.protocol import create_acls
from millstream_kafka.protocol.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination.acl_nodes import Entries
from ..coordination.coordination import Coordination
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import on_cluster
from ..security.audit.administration import Changed, changed_rule

NO_AUTHORIZER = "No Authorizer is configured."


def _refused(request: CreateAclsRequest, error: ApiError) -> CreateAclsResponse:
    refused = AclCreationResult(error.code, error.message)
    return CreateAclsResponse(results=[refused for _ in request.creations])


def _changes(request: CreateAclsRequest) -> Iterator[Changed]:
    for rule in request.creations:
        yield changed_rule(
            rule.resource_type,
            rule.resource_name,
            rule.resource_pattern_type,
            rule.principal,
            rule.host,
            rule.operation,
            rule.permission_type,
        )


@handler(create_acls.API, changes=_changes, rights=[on_cluster(AclOperation.ALTER)], refused=_refused)
async def handle(
    authorizer: Authorizer, coordination: Coordination, context: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse:
    if not authorizer.is_enabled:
        return _refused(request, ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    results = []
    added: dict[ResourcePattern, set[AccessControlEntry]] = {}
    created: list[tuple[ResourcePattern, AclCreationResult]] = []
    async for creation in cooperatively(request.creations):
        result = AclCreationResult(error_message="")
        results.append(result)
        try:
            pattern, entry = _rule(creation)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        added.setdefault(pattern, set()).add(entry)
        created.append((pattern, result))
    failed = await coordination.change_acls(
        {pattern: partial(_with, entries) for pattern, entries in added.items()}
    )
    for pattern, result in created:
        if (failure := failed.get(pattern)) is not None:
            result.error_code, result.error_message = failure.code, failure.message
    return CreateAclsResponse(results=results)


def _with(entries: set[AccessControlEntry], stored: Entries) -> Entries:
    return stored | entries


def _rule(creation: AclCreation) -> tuple[ResourcePattern, AccessControlEntry]:
    """The new rule. Raises ApiError, with Kafka's words."""
    resource_type = ResourceType.numbered(creation.resource_type)
    pattern_type = PatternType.numbered(creation.resource_pattern_type)
    operation = AclOperation.numbered(creation.operation)
    permission_type = PermissionType.numbered(creation.permission_type)
    name = creation.resource_name
    problem = None
    if resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        problem = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        problem = "Invalid empty resource name"
    elif resource_type <= ResourceType.ANY:
        problem = f"Invalid resourceType {resource_type.name}"
    elif pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        problem = f"Invalid patternType {pattern_type.name}"
    elif operation <= AclOperation.ANY:
        problem = f"Invalid operation {operation.name}"
    elif permission_type <= PermissionType.ANY:
        problem = f"Invalid permissionType {permission_type.name}"
    elif ":" not in creation.principal:
        problem = (
            f"Could not parse principal from `{creation.principal}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    return (
        ResourcePattern(resource_type, name, pattern_type),
        AccessControlEntry(creation.principal, creation.host, operation, permission_type),
    )
