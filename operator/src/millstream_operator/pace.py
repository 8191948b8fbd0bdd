"""Limits the precision and frequency of status numbers that change all the time; pure, the caller passes the time.

A size or a lag changes all the time, so thousands of resources would flood the API server with writes. The models mark
such status fields as ``Gauge``. A status shows their first two digits: 99 is 99, and 34,567 is 34,000; the metrics have
the exact numbers. Any other change is written at once. A change of gauges alone takes from a budget: while more than
half of it is left, every change is written; below that, only one that changes the number of digits; and none when the
budget is used up. So a few resources show each new number, and thousands the right order of magnitude, within
``PER_SECOND`` writes a second for all of them together. A status that is held back is retried at the next look.
"""

from __future__ import annotations

import functools
import threading
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from .models.base import Status

PER_SECOND = 0.4
BUDGET = 60.0  # writes

DIGITS = 2  # of a number that a status shows

StructT = TypeVar("StructT", bound=msgspec.Struct)


def in_round_numbers(status: StructT) -> StructT:
    """The status with each gauge rounded down to its first ``DIGITS`` digits."""
    return _with_gauges(status, rounded)


def rounded(number: int) -> int:
    """A number ≥ 0, rounded down to its first ``DIGITS`` digits."""
    unit: int = 10 ** max(0, _digits(number) - DIGITS)
    return number // unit * unit


class Pace:
    """The budget of one operator. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = BUDGET
        self._at: float | None = None

    def holds_back(self, before: Status, after: Status, now: float) -> bool:
        """Whether a changed status must wait; ``now`` in seconds. Counts a status that need not wait as written."""
        if _with_gauges(before, _zero) != _with_gauges(after, _zero):
            return False
        magnitudes = [list(map(_digits, _gauges(status))) for status in (before, after)]
        crosses = magnitudes[0] != magnitudes[1]
        with self._lock:
            self._left = min(
                BUDGET, self._left + PER_SECOND * max(0.0, now - (now if self._at is None else self._at))
            )
            self._at = now
            if self._left < (1.0 if crosses else BUDGET / 2):
                return True
            self._left -= 1.0
            return False


def _digits(number: int) -> int:
    return len(str(number)) if number else 0


def _zero(_: int) -> int:
    return 0


def _gauges(status: msgspec.Struct) -> Iterator[int]:
    """Every gauge of a status that has a value, in the order of its fields."""
    names = _gauge_names(type(status))
    for name in status.__struct_fields__:
        value = getattr(status, name)
        if name in names:
            if value is not None:
                yield value
        else:
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, msgspec.Struct):
                    yield from _gauges(part)


def _with_gauges(status: StructT, change: Callable[[int], int]) -> StructT:
    """The status with ``change`` applied to every gauge that has a value."""
    names = _gauge_names(type(status))
    changed: dict[str, Any] = {}
    for name in status.__struct_fields__:
        value = getattr(status, name)
        if name in names:
            changed[name] = None if value is None else change(value)
        elif isinstance(value, msgspec.Struct):
            changed[name] = _with_gauges(value, change)
        elif isinstance(value, tuple):
            changed[name] = tuple(
                _with_gauges(one, change) if isinstance(one, msgspec.Struct) else one for one in value
            )
    return msgspec.structs.replace(status, **changed)


@functools.cache
def _gauge_names(cls: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(one.name for one in msgspec.structs.fields(cls) if _is_gauge(one.type))


def _is_gauge(kind: Any) -> bool:
    """Whether a type is ``Gauge`` or ``Gauge | None``."""
    marks = getattr(kind, "__metadata__", ())
    if any(isinstance(mark, msgspec.Meta) and (mark.extra or {}).get("gauge") for mark in marks):
        return True
    return any(map(_is_gauge, typing.get_args(kind) if not marks else ()))
