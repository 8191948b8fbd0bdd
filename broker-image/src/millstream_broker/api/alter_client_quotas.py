"""AlterClientQuotas: set and remove quotas; each entity changes as a whole, or not at all.

An entity that a request names twice is refused, and nothing of it changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import alter_client_quotas
from millstream_kafka.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlteration,
    QuotaAlterationResult,
)
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination.coordination import Coordination
from ..coordination.entities import Entity
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.rights import on_cluster
from ..security.audit.administration import Changed
from ..security.quotas.requests import EntityNames, changed, changes_of, entity_of

AT_ONCE = 50
"""Entities that change concurrently."""


def _refused(request: AlterClientQuotasRequest, error: ApiError) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            QuotaAlterationResult(int(error.code), error.message, alteration.entity)
            for alteration in request.entries
        ]
    )


def _changes(request: AlterClientQuotasRequest) -> Iterator[Changed]:
    for entry in request.entries:
        entity = ", ".join(
            f"{part.entity_type[:50]} {'(default)' if part.entity_name is None else part.entity_name[:100]}"
            for part in entry.entity[:4]
        )
        yield Changed("Quota", entity, ", ".join(operation.key[:50] for operation in entry.ops[:5]))


@handler(
    alter_client_quotas.API,
    changes=_changes,
    rights=[on_cluster(AclOperation.ALTER_CONFIGS)],
    refused=_refused,
)
async def handle(
    coordination: Coordination, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    alterations = [(_names(alteration), alteration) async for alteration in cooperatively(request.entries)]
    named = Counter(frozenset(names.items()) for names, _ in alterations)
    turn = asyncio.Semaphore(AT_ONCE)

    async def alter(entity: Entity, changes: dict[str, str | None]) -> None:
        async with turn:
            await coordination.change_entity(entity, partial(changed, changes=changes))

    results: dict[frozenset[tuple[str, str | None]], ApiError | asyncio.Task[None] | None] = {}
    async for names, alteration in cooperatively(alterations):
        key = frozenset(names.items())
        try:
            if named[key] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {dict(names)}")
            entity = entity_of(names)
            ops = [(op.key, None if op.remove else op.value) for op in alteration.ops]
            changes = changes_of(entity, ops)
            results[key] = None if request.validate_only else asyncio.create_task(alter(entity, changes))
        except ApiError as error:
            results[key] = error
    entries = []
    entities = {frozenset(names.items()): alteration.entity for names, alteration in alterations}
    for key, result in results.items():
        if isinstance(result, asyncio.Task):
            try:
                await result
                result = None
            except ApiError as error:
                result = error
        code, message = (0, None) if result is None else (int(result.code), result.message)
        entries.append(QuotaAlterationResult(code, message, entities[key]))
    return AlterClientQuotasResponse(entries=entries)


def _names(alteration: QuotaAlteration) -> EntityNames:
    return {entity.entity_type: entity.entity_name for entity in alteration.entity}
