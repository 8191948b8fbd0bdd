"""RemoveStrays: remove strays of this broker, and their files, before the response. A log in use is never removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import remove_strays
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.remove_strays import (
    RemovedStray,
    RemoveStraysRequest,
    RemoveStraysResponse,
    StrayToRemove,
)

from ..log.directory import describe
from ..log.manager import LogManager
from ..network.handlers import RequestContext, handler
from ..runtime.slices import cooperatively
from ..security.acl.rights import on_cluster
from ..security.audit.administration import Changed

GONE = "it is no stray of this broker any more: list the strays again"


def _changes(request: RemoveStraysRequest) -> Iterator[Changed]:
    for stray in request.strays:
        yield Changed("Stray", f"{stray.log_dir[:150]}/{stray.folder[:100]}")


def _refused(request: RemoveStraysRequest, error: ApiError) -> RemoveStraysResponse:
    return RemoveStraysResponse(
        [RemovedStray(stray.log_dir, stray.folder, error.code, error.message) for stray in request.strays]
    )


@handler(
    remove_strays.API,
    changes=_changes,
    rights=[on_cluster(AclOperation.ALTER)],
    refused=_refused,
)
async def handle(
    logs: LogManager, context: RequestContext, request: RemoveStraysRequest
) -> RemoveStraysResponse:
    answers = []
    async for stray in cooperatively(request.strays):
        code, why = await asyncio.to_thread(_remove, logs, stray)
        answers.append(RemovedStray(stray.log_dir, stray.folder, code, why))
    await asyncio.to_thread(logs.remove_deleted)
    return RemoveStraysResponse(answers)


def _remove(logs: LogManager, stray: StrayToRemove) -> tuple[int, str | None]:
    try:
        is_removed = logs.remove_stray(Path(stray.log_dir) / stray.folder, stray.since_ms)
    except OSError as error:
        return ErrorCode.KAFKA_STORAGE_ERROR, f"its folder cannot be renamed: {describe(error)}"
    return (ErrorCode.NONE, None) if is_removed else (ErrorCode.RESOURCE_NOT_FOUND, GONE)
