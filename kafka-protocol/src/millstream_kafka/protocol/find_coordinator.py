"""FindCoordinator (key 10): the broker that coordinates a group (key_type 0) or a transactional id (key_type 1).

v1 adds key_type; v3 is flexible; v4 looks up many keys at once, in coordinator_keys and coordinators (KIP-699); v5
allows TRANSACTION_ABORTABLE (KIP-890); v6 finds coordinators of share groups (key_type 2, KIP-932).
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Struct):
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array("string", since=4)


class Coordinator(Struct):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class FindCoordinatorResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


API = Api(
    10,
    "FindCoordinator",
    (0, 6),
    flexible=3,
    request=FindCoordinatorRequest,
    response=FindCoordinatorResponse,
)
