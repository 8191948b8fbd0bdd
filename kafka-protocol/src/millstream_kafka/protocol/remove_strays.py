"""RemoveStrays (key 31003, Millstream's own): removes strays of this broker, for good. Each succeeds or fails alone.

A stray is named by ``log_dir``, ``folder`` and ``since_ms``, as in a DescribeStrays response: a log that has been in
use since then is another one, even under the same name.

    RESOURCE_NOT_FOUND       it is no stray any more, or its log directory is offline: nothing is removed
    KAFKA_STORAGE_ERROR      its folder cannot be renamed
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int16, int64, string


class StrayToRemove(Struct):
    log_dir: str = string()
    folder: str = string()
    since_ms: int = int64()


class RemoveStraysRequest(Struct):
    strays: list[StrayToRemove] = array(StrayToRemove)


class RemovedStray(Struct):
    log_dir: str = string()
    folder: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class RemoveStraysResponse(Struct):
    strays: list[RemovedStray] = array(RemovedStray)


API = Api(
    31003,
    "RemoveStrays",
    (0, 0),
    flexible=None,
    request=RemoveStraysRequest,
    response=RemoveStraysResponse,
)
