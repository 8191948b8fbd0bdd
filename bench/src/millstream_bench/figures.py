"""The figures of a workload: unit, direction and goal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a workload. Goals: ours over Kafka's (``ratio``), ours alone (``value``); each a bound."""

    name: str
    unit: str
    higher_is_better: bool = False
    ratio: float | None = None
    value: float | None = None

    @property
    def goal(self) -> str:
        sign = "≥" if self.higher_is_better else "≤"
        goals = []
        if self.value is not None:
            goals.append(f"{sign} {number(self.value)} {self.unit}")
        if self.ratio is not None:
            goals.append(f"{sign} {self.ratio:g}×")
        return ", ".join(goals)

    def met(self, ours: float, theirs: float | None) -> bool | None:
        """Whether the goal holds; None without a goal, or without anything to compare with."""
        verdicts = []
        if self.value is not None:
            verdicts.append(ours >= self.value if self.higher_is_better else ours <= self.value)
        if self.ratio is not None and theirs:
            verdicts.append(
                ours >= self.ratio * theirs if self.higher_is_better else ours <= self.ratio * theirs
            )
        return all(verdicts) if verdicts else None


def rate(ratio: float | None = None) -> Figure:
    return Figure("rate", "records/s", higher_is_better=True, ratio=ratio)


def cpu(ratio: float | None = None) -> Figure:
    return Figure("broker CPU", "s", ratio=ratio)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def scatter(values: Sequence[float]) -> float | None:
    """How far the same broker's rounds are apart (A/A), as a share of their median; None of a single one."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if len(values) > 1 and middle else None


def number(value: float) -> str:
    """Three significant digits, thousands separated: 507,614 and 0.412."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.3g}"
