"""The mutations of topics by one request: KIP-599's quota, strict or lenient."""

from __future__ import annotations

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..session import ClientSession
from .quotas import Quotas


class Mutations:
    """The partitions that one request creates and deletes.

    A strict quota refuses each topic while tokens are owed. A lenient one, for clients that do not know the error, lets
    the topic pass, and throttles.
    """

    __slots__ = ("_found", "_is_strict", "_recorded_ms", "_throttle_ms")

    def __init__(
        self, quotas: Quotas, session: ClientSession, client_id: str | None, now_ms: int, *, is_strict: bool
    ) -> None:
        is_peer = session.peer_broker is not None
        self._found = None if is_peer else quotas.mutation.find(session, client_id, now_ms)
        self._is_strict = is_strict
        self._throttle_ms = 0
        self._recorded_ms = now_ms

    def record(self, partitions: int, now_ms: int) -> None:
        """Count the partitions of one topic. Raises ApiError THROTTLING_QUOTA_EXCEEDED."""
        if self._found is None:
            return
        sensor, limit = self._found
        bucket = sensor.measure
        if self._is_strict:
            if throttle_ms := bucket.throttle_ms(limit, now_ms):
                self._throttle(throttle_ms, now_ms)
                raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
            bucket.record(partitions, limit, now_ms)
        else:
            bucket.record(partitions, limit, now_ms)
            if throttle_ms := bucket.throttle_ms(limit, now_ms):
                self._throttle(throttle_ms, now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """The rest of the throttle time, for the response."""
        rest = max(0, self._throttle_ms - (now_ms - self._recorded_ms))
        if self._found is not None:
            self._found[0].throttle(rest)
        return rest

    def _throttle(self, throttle_ms: int, now_ms: int) -> None:
        self._throttle_ms, self._recorded_ms = throttle_ms, now_ms
