"""Warms up a broker, until its CPU for the same work no longer changes.

A JVM keeps compiling for many runs: the cost of the first ones says little about later ones, and two that
agree may be a pause between two compilations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TOLERANCE = 0.1
"""Greatest difference between runs that agree, as a share of the largest one."""
AGREEING = 3
"""Runs in a row that must agree."""
MOST_RUNS = 24


def is_steady(costs: Sequence[float], least_runs: int = AGREEING) -> bool:
    """Whether the last AGREEING of these CPU seconds agree, and there are enough."""
    if len(costs) < max(AGREEING, least_runs):
        return False
    last = costs[-AGREEING:]
    return max(last) - min(last) <= TOLERANCE * max(last)


def until_steady(
    work: Callable[[], object],
    cpu_seconds: Callable[[], float],
    least_runs: int = AGREEING,
    most_runs: int = MOST_RUNS,
) -> list[float]:
    """Do `work` until its cost is steady, at most `most_runs` times; returns the CPU seconds of each."""
    costs: list[float] = []
    while not is_steady(costs, least_runs) and len(costs) < most_runs:
        before = cpu_seconds()
        work()
        costs.append(cpu_seconds() - before)
    return costs
