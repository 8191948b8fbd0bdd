"""Limits the bytes in flight, so that a slow link carries them before a request times out. No I/O.

Without it, a fetch of megabytes over a slow link would time out and be repeated for ever. A timeout cuts the window to
an eighth; each quick response doubles it.
"""

from __future__ import annotations

QUICK_S = 1.0
LEAST_BYTES = 64 << 10


class Window:
    def __init__(self, most: int) -> None:
        """``most`` is the limit in bytes on a fast link."""
        self._most = most
        self.bytes = most

    def timed_out(self) -> None:
        self.bytes = max(self.bytes // 8, LEAST_BYTES)

    def answered(self, seconds: float) -> None:
        """A request that fitted into the window got its response after this time."""
        if seconds < QUICK_S:
            self.bytes = min(self.bytes * 2, self._most)
