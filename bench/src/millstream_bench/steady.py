"""Warms up a broker, until its CPU for the same work no longer changes.

A JVM keeps compiling for many runs: the cost of the first ones says little about later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TOLERANCE = 0.1
"""Greatest difference between two consecutive runs, as a share of the larger one."""
LEAST_RUNS, MOST_RUNS = 3, 12


def is_steady(costs: Sequence[float]) -> bool:
    """Whether the last two of these CPU seconds agree, after LEAST_RUNS."""
    if len(costs) < LEAST_RUNS:
        return False
    before, last = costs[-2:]
    return abs(last - before) <= TOLERANCE * max(before, last)


def until_steady(work: Callable[[], object], cpu_seconds: Callable[[], float]) -> list[float]:
    """Do `work` until its cost is steady, at most MOST_RUNS times; returns the CPU seconds of each."""
    costs: list[float] = []
    while not is_steady(costs) and len(costs) < MOST_RUNS:
        before = cpu_seconds()
        work()
        costs.append(cpu_seconds() - before)
    return costs
