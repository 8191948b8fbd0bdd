"""A Prometheus histogram of durations."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the latency buckets, in seconds."""


class Histogram:
    """Counts durations by upper bounds, in seconds."""

    __slots__ = ("bounds", "buckets", "count", "seconds")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.buckets[bisect_left(self.bounds, seconds)] += 1

    def cumulative(self) -> list[tuple[str, int]]:
        """Number of durations up to each bound, as Prometheus counts; the last bound is +Inf."""
        return list(zip((*map(str, self.bounds), "+Inf"), accumulate(self.buckets), strict=True))
