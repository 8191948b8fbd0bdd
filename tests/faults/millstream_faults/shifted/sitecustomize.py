"""Python runs this before a broker's own code: every function that reads the wall clock adds a shift to it.

The shift is in a file, as eight bytes of nanoseconds, named by `MILLSTREAM_CLOCK`. It may change while the broker runs.
Clocks that only measure time (`time.monotonic`) are as they are, as on a machine whose date is set.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

ENVIRONMENT = "MILLSTREAM_CLOCK"
NS = 1_000_000_000


def shift(clock: ModuleType, shift_ns: Callable[[], int]) -> None:
    """Replace the functions of `time` that read the wall clock."""
    real_time, real_time_ns = clock.time, clock.time_ns
    real_get, real_get_ns = clock.clock_gettime, clock.clock_gettime_ns

    def time_ns() -> int:
        return int(real_time_ns()) + shift_ns()

    clock.time_ns = time_ns  # type: ignore[attr-defined]
    clock.time = lambda: real_time() + shift_ns() / NS  # type: ignore[attr-defined]

    def clock_gettime(which: int) -> float:
        return float(real_get(which)) + (shift_ns() / NS if which == time.CLOCK_REALTIME else 0.0)

    def clock_gettime_ns(which: int) -> int:
        return int(real_get_ns(which)) + (shift_ns() if which == time.CLOCK_REALTIME else 0)

    clock.clock_gettime, clock.clock_gettime_ns = clock_gettime, clock_gettime_ns  # type: ignore[attr-defined]
    for name in (
        "gmtime",
        "localtime",
        "ctime",
    ):  # partial: as an attribute of a class, it must not become a method
        setattr(clock, name, partial(_of_seconds, clock, getattr(clock, name)))
    clock.strftime = partial(_of_tuple, clock, clock.strftime, 2)  # type: ignore[attr-defined]
    clock.asctime = partial(_of_tuple, clock, clock.asctime, 1)  # type: ignore[attr-defined]


def _of_seconds(clock: ModuleType, real: Callable[[float], Any], seconds: float | None = None) -> Any:
    """A function that reads the clock if it gets no time."""
    return real(clock.time() if seconds is None else seconds)


def _of_tuple(clock: ModuleType, real: Callable[..., Any], count: int, *given: Any) -> Any:
    """The same, for a tuple as the last of so many arguments."""
    return real(*given) if len(given) >= count else real(*given, clock.localtime())


if path := os.environ.get(ENVIRONMENT):
    with Path(path).open("rb") as _file:
        _map = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    shift(time, lambda: int.from_bytes(_map[:8], "little", signed=True))
