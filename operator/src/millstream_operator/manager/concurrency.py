"""Limits concurrent reconciles: slow ones do not count towards the limit, but have their own; pure.

A reconcile with brokers that do not respond blocks until a timeout. So one that has taken ``SLOW_S`` no longer counts
as one of the ``WORKERS``, up to ``THREADS`` in all. Its group, with the others of its Cluster, is slow from then on: at
most ``SLOW_WORKERS`` reconciles of slow groups run at once, until one of these is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

WORKERS = 4
THREADS = 16
SLOW_S = 2.0
SLOW_WORKERS = 2


def alone(group: Hashable) -> Collection[Hashable]:
    return (group,)


@dataclass(slots=True)
class WorkerConcurrency:
    """The running reconciles, by group. Times are in seconds. ``beside``: the groups that use the same brokers,
    including the group itself."""

    beside: Callable[[Hashable], Collection[Hashable]] = alone
    begun: dict[Hashable, float] = field(default_factory=dict)
    slow: set[Hashable] = field(default_factory=set)

    def begin(self, group: Hashable, now: float) -> None:
        self.begun[group] = now

    def end(self, group: Hashable, now: float) -> None:
        took = now - self.begun.pop(group)
        change = self.slow.update if took > SLOW_S else self.slow.difference_update
        change(self.beside(group))

    def free(self, now: float) -> bool:
        """Whether another reconcile may begin."""
        return len(self.begun) < THREADS and len(self._quick(now)) < WORKERS

    def free_at(self, now: float) -> float | None:
        """When another reconcile may begin even if none ends before; None if never, or if one may begin now."""
        quick = self._quick(now)
        if len(self.begun) >= THREADS or len(quick) < WORKERS:
            return None
        return min(self.begun[group] for group in quick) + SLOW_S

    def held_back(self, now: float) -> Collection[Hashable]:
        """The groups that must wait although a reconcile may begin: slow ones, while enough of them run."""
        late = {
            group for group, begun in self.begun.items() if now - begun >= SLOW_S and group not in self.slow
        }
        slow = self.slow.union(*map(self.beside, late))
        return slow if len(slow.intersection(self.begun)) >= SLOW_WORKERS else ()

    def longest(self, now: float) -> float:
        """How long the longest running reconcile has taken so far."""
        return now - min(self.begun.values(), default=now)

    def _quick(self, now: float) -> list[Hashable]:
        return [
            group for group, begun in self.begun.items() if now - begun < SLOW_S and group not in self.slow
        ]
