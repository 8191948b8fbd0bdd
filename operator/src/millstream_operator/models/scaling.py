"""The load of a group over time, for the number of its consumers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Load:
    """A group's load.

    ``unread``: records to consume; ``produced``, ``consumed``: sums of offsets; ``missing``: whether a listed topic
    does not exist.
    """

    unread: int
    produced: int
    consumed: int
    partitions: int
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    time: datetime
    load: Load


@dataclass(frozen=True, slots=True)
class History:
    """The memory of a group.

    ``since``: start of the window; ``peaks``: times and needs, each lower than the previous ones; ``samples``: of one
    window; ``speeds``: times and records a second of one consumer that fell behind; ``lacking_since``: since when each
    reconcile has lacked topics, or partitions for the consumers.
    """

    since: datetime | None = None
    peaks: tuple[tuple[datetime, int], ...] = ()
    samples: tuple[Sample, ...] = ()
    speeds: tuple[tuple[datetime, float], ...] = ()
    lacking_since: datetime | None = None
