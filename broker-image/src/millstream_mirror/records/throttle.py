"""A token bucket for bytes fetched from a source. No I/O: the caller passes the time, in seconds.

A fetch reserves bytes before it is sent and returns unused ones, so several fetches at once stay within the limit
together. In any t seconds at most ``rate * (t + BURST_S)`` bytes are used, plus one fetch, plus whatever brokers
send above the bytes reserved: at most one batch per fetch, which brokers never split. Later fetches pay for both.
"""

from __future__ import annotations

BURST_S = 1.0
"""Time for which unused bytes are kept."""
SHARE_S = 0.1
"""One fetch reserves the bytes of this much time."""
LEAST_BYTES, MOST_BYTES = 16 << 10, 8 << 20
"""Limits of one fetch."""


class TokenBucket:
    def __init__(self, rate: float, now: float) -> None:
        """``rate`` is in bytes a second, above 0."""
        self._rate = rate
        self._tokens = rate * BURST_S
        self._at = now

    def change(self, rate: float, now: float) -> None:
        """Change the rate from now on."""
        self._refill(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * BURST_S)

    def reserve(self, now: float) -> int:
        """Number of bytes to fetch; 0 means wait."""
        self._refill(now)
        if self._tokens <= 0:
            return 0
        reserved = int(min(max(self._rate * SHARE_S, LEAST_BYTES), MOST_BYTES))
        self._tokens -= reserved
        return reserved

    def settle(self, reserved: int, used: int) -> None:
        """End a fetch: ``used`` may exceed ``reserved``, or be 0."""
        self._tokens += reserved - used

    def wait_s(self) -> float:
        """Time until bytes are available, unless a fetch returns some earlier."""
        return max(0.0, -self._tokens / self._rate)

    def _refill(self, now: float) -> None:
        self._tokens = min(self._tokens + max(0.0, now - self._at) * self._rate, self._rate * BURST_S)
        self._at = max(now, self._at)
