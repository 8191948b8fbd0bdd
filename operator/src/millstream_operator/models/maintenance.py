"""When a Cluster may be upgraded by itself: weekly windows, in UTC; pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from .base import Spec

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
DAYS: tuple[Day, ...] = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class MaintenanceWindow(Spec, frozen=True):
    """From ``start`` to ``end``, on the next day if ``end`` is earlier; it starts on these ``days``."""

    start: str
    end: str
    days: tuple[Day, ...] = ()

    def starting(self, day: datetime) -> tuple[datetime, datetime] | None:
        """The window that starts on the day of a moment."""
        if self.days and DAYS[day.weekday()] not in self.days:
            return None
        start, end = _at(day, self.start), _at(day, self.end)
        return start, end if end > start else end + timedelta(days=1)


class Maintenance(Spec, frozen=True):
    windows: tuple[MaintenanceWindow, ...]


def next_window(windows: Sequence[MaintenanceWindow], now: datetime) -> tuple[datetime, datetime]:
    """The open window, or else the next one: its start and end, in UTC. There is always one."""
    today = now.astimezone(UTC)
    days = (today + timedelta(days=days) for days in range(-1, 8))
    found = [window.starting(day) for day in days for window in windows]
    return min(window for window in found if window is not None and window[1] > today)


def _at(day: datetime, time: str) -> datetime:
    hour, minute = time.split(":")
    return day.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
