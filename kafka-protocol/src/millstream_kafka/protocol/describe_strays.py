"""DescribeStrays (key 31002, Millstream's own): the strays of this broker, logs that fit no topic.

``folder`` is the name of a stray's folder in ``log_dir``. ``since_ms`` is when it became one; both name it, with
``log_dir``, in a RemoveStrays request. ``topic`` may be shortened. ``topic_id`` is zero if the log has none.
"""

from __future__ import annotations

import uuid

from .api import Api
from .schema import Struct, array, int16, int32, int64, string, uuid_


class DescribeStraysRequest(Struct):
    pass


class DescribedStray(Struct):
    log_dir: str = string()
    folder: str = string()
    topic: str = string()
    partition: int = int32()
    topic_id: uuid.UUID = uuid_()
    size: int = int64()
    since_ms: int = int64()


class DescribeStraysResponse(Struct):
    error_code: int = int16()
    strays: list[DescribedStray] = array(DescribedStray)


API = Api(
    31002,
    "DescribeStrays",
    (0, 0),
    flexible=None,
    request=DescribeStraysRequest,
    response=DescribeStraysResponse,
)
