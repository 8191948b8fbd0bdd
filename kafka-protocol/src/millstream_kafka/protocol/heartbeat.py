"""Heartbeat (key 12): a member shows that it is alive, and learns of rebalances.

v1 adds throttle_time_ms; v3 static members (KIP-345); v4 is flexible.
"""

from __future__ import annotations

from .api import Api
from .schema import Struct, int16, int32, string


class HeartbeatRequest(Struct):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3, default=None)


class HeartbeatResponse(Struct):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()


API = Api(12, "Heartbeat", (0, 4), flexible=4, request=HeartbeatRequest, response=HeartbeatResponse)
