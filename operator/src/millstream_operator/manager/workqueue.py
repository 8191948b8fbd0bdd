"""Queue of the resources to reconcile: when, and together with which others.

Keys wait in groups. One worker at a time works on a group: a Cluster is its own group, so it is never reconciled twice
at once; the Topics of one Cluster are one group, so they share the calls to its brokers. A key waits once, with the
earliest requested time. The queue has no clock and no threads: the caller passes the time, in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

from ..models.keys import Key

LimitOf = Callable[[Hashable], int]
"""Most keys of a batch, by group."""
EarlyOf = Callable[[Hashable], float]
"""How many seconds before its time a key may join a batch, by group."""


@dataclass(frozen=True, slots=True)
class Batch:
    group: Hashable
    keys: tuple[Key, ...]


@dataclass(slots=True)
class WorkQueue:
    _waiting: dict[Hashable, dict[Key, float]] = field(default_factory=dict)
    _group_of: dict[Key, Hashable] = field(default_factory=dict)
    _busy: set[Hashable] = field(default_factory=set)
    _heap: list[tuple[float, int, Hashable]] = field(default_factory=list)
    _count: int = 0
    _alone: set[Key] = field(default_factory=set)

    def add(self, key: Key, group: Hashable, at: float, *, alone: bool = False) -> None:
        """Reconcile ``key`` at that time or before; ``alone`` keeps it apart from its group's others."""
        if self._group_of.get(key, group) != group:
            self.forget(key)
        self._group_of[key] = group
        (self._alone.add if alone else self._alone.discard)(key)
        waiting = self._waiting.setdefault(group, {})
        if key not in waiting or at < waiting[key]:
            waiting[key] = at
            if group not in self._busy:
                self._push(group, at)

    def forget(self, key: Key) -> None:
        group = self._group_of.pop(key, None)
        self._alone.discard(key)
        waiting = self._waiting.get(group)
        if waiting is not None:
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[group]

    def take(
        self,
        now: float,
        limit: int | LimitOf,
        held_back: Collection[Hashable] = (),
        early: float | EarlyOf = 0.0,
    ) -> Batch | None:
        """The due keys of the most overdue group, at most ``limit``; call ``done`` with the batch afterwards. Skips the
        groups in ``held_back``. Keys of the group that are due within ``early`` seconds come along, so that keys of one
        interval stay together."""
        passed_over: list[tuple[float, int, Hashable]] = []
        limit_of = (lambda _: limit) if isinstance(limit, int) else limit
        early_of = early if callable(early) else lambda _: early
        try:
            return self._take(now, limit_of, held_back, early_of, passed_over)
        finally:
            for entry in passed_over:
                heapq.heappush(self._heap, entry)

    def _take(
        self,
        now: float,
        limit_of: LimitOf,
        held_back: Collection[Hashable],
        early_of: EarlyOf,
        passed_over: list[tuple[float, int, Hashable]],
    ) -> Batch | None:
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            group = entry[2]
            if group in self._busy:
                continue  # done() brings it back
            if group in held_back:
                passed_over.append(entry)
                continue
            waiting = self._waiting.get(group, {})
            due = sorted((at, key) for key, at in waiting.items() if at <= now + early_of(group))
            if not due or due[0][0] > now:  # the key of this entry is gone or was queued again
                if waiting:
                    self._push(group, min(waiting.values()))
                continue
            first = due[0][1]
            together = [key for _, key in due if key not in self._alone][: limit_of(group)]
            keys = (first,) if first in self._alone else tuple(together)
            for key in keys:
                self.forget(key)
            self._busy.add(group)
            return Batch(group, keys)
        return None

    def done(self, batch: Batch) -> None:
        """The group's batch is done: a worker may take the group again."""
        self._busy.discard(batch.group)
        waiting = self._waiting.get(batch.group)
        if waiting:
            self._push(batch.group, min(waiting.values()))

    def next_at(self, held_back: Collection[Hashable] = ()) -> float | None:
        """When ``take`` may return a batch, as far as is known now."""
        if not held_back:
            return self._heap[0][0] if self._heap else None
        return min((at for at, _, group in self._heap if group not in held_back), default=None)

    def overdue(self, now: float, but: Collection[Hashable] = ()) -> float:
        """How long the most overdue key has been waiting, except in the groups ``but``."""
        times = [
            at for group, waiting in self._waiting.items() if group not in but for at in waiting.values()
        ]
        return max(0.0, now - min(times)) if times else 0.0

    def due(self, now: float) -> int:
        """Number of keys that are due and wait for a worker."""
        return sum(at <= now for waiting in self._waiting.values() for at in waiting.values())

    def __len__(self) -> int:
        return len(self._group_of)

    def _push(self, group: Hashable, at: float) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, group))
