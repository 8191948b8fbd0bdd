"""The clock of streams and leases."""

from __future__ import annotations

import time
from typing import Final

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(CLOCK)
