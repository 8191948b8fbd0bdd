"""Limits how often statuses are written in which only numbers differ; pure: the caller passes the time.

A size or a lag changes all the time, so thousands of resources would flood the API server with writes. The models mark
such status fields as ``Gauge``. Their numbers are exact, but a status that differs in nothing else draws on a budget of
its kind, which gains ``PER_SECOND`` writes a second. While few resources change, every change is written. When many do,
they take turns, by how long they have waited and how much their numbers have changed: a number that has doubled waits
about a quarter as long as one that is almost right. The numbers at the time of the write are written.

A part of the budget, ``RESERVE``, is for changes that matter more: a number that has grown tenfold or shrunk to a
tenth, and one that no longer changes (``SETTLED_S``), which would stay wrong. A status with another change, such as a
condition, is written at once, with all its numbers. A status that is held back is retried at the next reconcile.
"""

from __future__ import annotations

import functools
import heapq
import math
import threading
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..models.base import Status
from ..models.keys import Key

PER_SECOND = {"Topic": 0.1, "User": 0.1, "ConsumerGroup": 0.5, "MirrorMaker": 0.2, "BatchLoad": 0.2}
BUDGET = 500.0  # largest number of writes at once, for each kind
RESERVE = 440.0  # the share of more important changes
SETTLED_S = 30.0
UNSEEN_S = 150.0  # a status loses its turn if its resource is not reconciled for so long, or its numbers do not change
TENFOLD = 10
CHANGED = 10.0
"""How many times sooner a number that has changed tenfold gets its turn than one that is almost right, less one."""


@dataclass(slots=True)
class _Held:
    """A waiting status. ``numbers``: its gauges at the last reconcile, without ages, unchanged since ``since``.

    ``weight``: how much these differ from those that are shown.
    """

    numbers: list[int]
    since: float
    seen: float
    arrived: float
    weight: float = 1.0

    def urgency(self, now: float) -> float:
        return self.weight * (now - self.arrived)


@dataclass(slots=True)
class _Line:
    """The budget of a kind, the waiting statuses, and those of them whose turn it is."""

    per_second: float
    left: float = BUDGET
    at: float | None = None
    swept: float = 0.0
    waiting: dict[Key, _Held] = field(default_factory=dict)
    turn: set[Key] = field(default_factory=set)

    def holds_back(self, key: Key, before: Status, after: Status, now: float) -> bool:
        self._pass(now)
        numbers = list(_gauges(after, ages=False))
        held = self.waiting.setdefault(key, _Held(numbers, now, now, now))
        held.seen = now
        changes = map(_change, _gauges(before, ages=False), numbers)
        held.weight = 1.0 + CHANGED * max(changes, default=0.0)
        if held.numbers != numbers or now < held.since:
            held.numbers, held.since = numbers, now
        if now - held.since >= SETTLED_S or any(map(_is_tenfold, _gauges(before), _gauges(after))):
            is_next = self.left >= 1.0
        else:
            is_next = self._has_turn(key, now)
        if is_next:
            self.left -= 1.0
            del self.waiting[key]
        return not is_next

    def _has_turn(self, key: Key, now: float) -> bool:
        """Turns are given when the budget allows more writes than statuses have one, so rarely."""
        writes = max(0, int(self.left - RESERVE))
        self.turn &= self.waiting.keys()
        if len(self.turn) < writes:
            most = heapq.nlargest(writes, self.waiting, key=lambda one: self.waiting[one].urgency(now))
            self.turn = set(most)
        return writes > 0 and key in self.turn

    def _pass(self, now: float) -> None:
        passed = max(0.0, now - (now if self.at is None else self.at))
        self.left, self.at = min(BUDGET, self.left + self.per_second * passed), now
        if not 0.0 <= now - self.swept < UNSEEN_S / 2:
            self.swept = now
            self.waiting = {
                key: held for key, held in self.waiting.items() if abs(now - held.seen) < UNSEEN_S
            }


class Pace:
    """The budgets of one operator. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines = {kind: _Line(rate) for kind, rate in PER_SECOND.items()}

    def holds_back(self, key: Key, before: Status, after: Status, now: float) -> bool:
        """Whether a changed status must wait; ``now`` in seconds. Counts a status that need not wait as written."""
        line = self._lines.get(key.kind)
        if line is None:
            return False
        with self._lock:
            if not _differ_in_gauges(before, after):
                line.waiting.pop(key, None)
                return False
            return line.holds_back(key, before, after, now)

    def shows(self, key: Key) -> None:
        """The status of a resource shows its numbers. If it was waiting, it keeps its turn in case they change soon."""
        if (line := self._lines.get(key.kind)) is not None:
            with self._lock:
                if (held := line.waiting.get(key)) is not None:
                    held.numbers.clear()


def _change(one: int, other: int) -> float:
    """The number of digits by which they differ: 0 for equal numbers, 1 for a tenth and ten times."""
    return abs(math.log10(max(1, one)) - math.log10(max(1, other)))


def _is_tenfold(one: int, other: int) -> bool:
    return max(one, other) >= TENFOLD * max(1, min(one, other))


def _gauges(status: msgspec.Struct, *, ages: bool = True) -> Iterator[int]:
    """Every gauge of a status that has a value, in the order of its fields."""
    names = _gauge_names(type(status))
    for name in status.__struct_fields__:
        value = getattr(status, name)
        if name in names:
            if value is not None and (ages or not names[name]):
                yield value
        else:
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, msgspec.Struct):
                    yield from _gauges(part, ages=ages)


def _differ_in_gauges(before: Any, after: Any) -> bool:
    """Whether only values of gauges differ."""
    if type(before) is not type(after):
        return False
    if isinstance(before, tuple):
        return len(before) == len(after) and all(map(_differ_in_gauges, before, after))
    if not isinstance(before, msgspec.Struct):
        return bool(before == after)
    names = _gauge_names(type(before))
    for name in before.__struct_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if one == other or (name in names and one is not None and other is not None):
            continue
        if not _differ_in_gauges(one, other):
            return False
    return True


@functools.cache
def _gauge_names(cls: type[msgspec.Struct]) -> dict[str, bool]:
    """The gauges among a record's fields; whether each is an age."""
    found = {one.name: _gauge(one.type) for one in msgspec.structs.fields(cls)}
    return {name: gauge == "age" for name, gauge in found.items() if gauge}


def _gauge(kind: Any) -> str:
    """The mark of a type that is ``Gauge`` or ``Age``, or either one or None; empty for any other type."""
    marks = getattr(kind, "__metadata__", ())
    for mark in marks:
        if isinstance(mark, msgspec.Meta) and (found := (mark.extra or {}).get("gauge")):
            return str(found)
    return next(filter(None, map(_gauge, typing.get_args(kind) if not marks else ())), "")
