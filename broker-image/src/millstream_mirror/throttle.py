"""A token bucket for bytes fetched from a source. No I/O: the caller brings the time, in seconds.

A fetch reserves bytes before it is sent and gives back what it did not use, so several fetches at once stay within
the limit together. In any t seconds at most ``rate * (t + BURST_S)`` bytes are used, plus one fetch, plus what brokers
send above the bytes reserved: at most one batch a fetch, which brokers never split. The next fetches pay for both.
"""

from __future__ import annotations

BURST_S = 1.0
"""What was not used is kept for so long."""
SHARE_S = 0.1
"""One fetch reserves the bytes of so much time."""
LEAST_BYTES, MOST_BYTES = 16 << 10, 8 << 20
"""Of one fetch."""


class TokenBucket:
    def __init__(self, rate: float, now: float) -> None:
        """``rate``: bytes a second, more than 0."""
        self._rate = rate
        self._tokens = rate * BURST_S
        self._at = now

    def change(self, rate: float, now: float) -> None:
        """Have another rate from now on."""
        self._refill(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * BURST_S)

    def reserve(self, now: float) -> int:
        """How many bytes to fetch; 0: wait."""
        self._refill(now)
        if self._tokens <= 0:
            return 0
        reserved = int(min(max(self._rate * SHARE_S, LEAST_BYTES), MOST_BYTES))
        self._tokens -= reserved
        return reserved

    def settle(self, reserved: int, used: int) -> None:
        """The fetch has ended: ``used`` may be more than was reserved, or 0."""
        self._tokens += reserved - used

    def wait_s(self) -> float:
        """How long until something can be reserved, unless a fetch gives bytes back before."""
        return max(0.0, -self._tokens / self._rate)

    def _refill(self, now: float) -> None:
        self._tokens = min(self._tokens + max(0.0, now - self._at) * self._rate, self._rate * BURST_S)
        self._at = max(now, self._at)
