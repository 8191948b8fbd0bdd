"""DeleteAcls: delete the access rules that filters match; SECURITY_DISABLED without an authorizer.

The response lists, for each filter, the rules that it matched, deleted now or by an earlier filter of the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from millstream_kafka.acl import AccessControlEntry, AclOperation, ResourcePattern
from millstream_kafka.protocol import delete_acls
from millstream_kafka.protocol.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination.acl_nodes import Entries
from ..coordination.coordination import Coordination
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.authorizer import Authorizer
from ..security.acl.filters import AclFilter, fields_of
from ..security.acl.rights import on_cluster
from ..security.audit.administration import Changed, changed_rule
from .create_acls import NO_AUTHORIZER

MOST_MATCHED = 100_000
"""Most rules that one request may match: a few bytes of filters must not make a response of a gigabyte."""


def _refused(request: DeleteAclsRequest, error: ApiError) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error.code, error.message)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])


def _changes(request: DeleteAclsRequest) -> Iterator[Changed]:
    for wanted in request.filters:
        yield changed_rule(*fields_of(wanted))


@handler(delete_acls.API, changes=_changes, rights=[on_cluster(AclOperation.ALTER)], refused=_refused)
async def handle(
    authorizer: Authorizer, coordination: Coordination, context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    if not authorizer.is_enabled:
        return _refused(request, ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
    results: list[DeleteAclsFilterResult] = []
    deleted: dict[ResourcePattern, set[AccessControlEntry]] = {}
    matched: list[tuple[ResourcePattern, DeleteAclsMatchingAcl]] = []
    for given in request.filters:
        result = DeleteAclsFilterResult(error_message=None)
        results.append(result)
        try:
            wanted = AclFilter.of(given)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        async for pattern, entries in cooperatively(list(coordination.acls.rules.items())):
            if not wanted.matches_pattern(pattern):
                continue
            for entry in filter(wanted.matches_entry, sorted(entries)):
                if len(matched) >= MOST_MATCHED:
                    message = f"The filters match more than {MOST_MATCHED} rules: use several requests."
                    return _refused(request, ApiError(ErrorCode.INVALID_REQUEST, message))
                deleted.setdefault(pattern, set()).add(entry)
                result.matching_acls.append(_matching(pattern, entry))
                matched.append((pattern, result.matching_acls[-1]))
    failed = await coordination.change_acls(
        {pattern: partial(_without, entries) for pattern, entries in deleted.items()}
    )
    for pattern, acl in matched:
        if (failure := failed.get(pattern)) is not None:
            acl.error_code, acl.error_message = failure.code, failure.message
    return DeleteAclsResponse(filter_results=results)


def _without(entries: set[AccessControlEntry], stored: Entries) -> Entries:
    return stored - entries


def _matching(pattern: ResourcePattern, entry: AccessControlEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        0,
        None,
        pattern.resource_type,
        pattern.name,
        pattern.pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission_type,
    )
