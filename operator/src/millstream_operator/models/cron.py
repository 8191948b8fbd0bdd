"""Cron expressions of five fields in a time zone; pure, the caller passes the time.

Fields, names, ranges, steps and the treatment of changes to and from summer time are those of Debian's cron
(https://manpages.debian.org/bookworm/cron/cron.8.en.html), implemented by the library cronsim: a time that a clock
change skips comes right after the change, and one that it repeats comes once; with ``*`` as the hour or minute, every
real hour or minute counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

SECOND = timedelta(seconds=1)
FIELDS = "minute hour day-of-month month day-of-week"


MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Those of Kubernetes' CronJobs."""


def check(cron: str, time_zone: str) -> None:
    """Raises ValueError, with one line for the user, for an invalid cron expression or time zone."""
    fields = MACROS.get(cron, cron)
    if len(fields.split()) != 5:
        raise ValueError(
            f"cron: {cron!r} is not allowed: five fields are required ({FIELDS}), such as 0 3 * * *, or"
            f" one of {', '.join(MACROS)}"
        )
    try:
        if not fields.isascii():
            raise ValueError("only letters, digits and * , - / of ASCII")
        first = next(CronSim(fields, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except (CronSimError, ValueError) as error:
        raise ValueError(f"cron: {cron!r} is not allowed: {_words(error)}; expected {FIELDS}") from None
    if first is None:
        raise ValueError(f"cron: {cron!r} is not allowed: there is no such date")
    try:
        ZoneInfo(time_zone)
    except (KeyError, OSError, ValueError):  # an unknown name, a folder of the database, a path
        raise ValueError(
            f"timeZone: {time_zone!r} is not allowed: a name of the IANA database is required, such as Europe/Berlin"
        ) from None


def next_time(cron: str, time_zone: str, after: datetime) -> datetime:
    """The first time of the schedule after a moment, in UTC."""
    for found in _times(cron, time_zone, after, reverse=False):
        if found > after:
            return found
    raise ValueError(f"cron: {cron!r} names no time")


def last_time(cron: str, time_zone: str, until: datetime) -> datetime:
    """The last time of the schedule at or before a moment, in UTC."""
    # Reverse iteration leaves the moment itself out.
    found = next_time(cron, time_zone, until.replace(microsecond=0) - SECOND)
    if found <= until:
        return found
    for found in _times(cron, time_zone, until, reverse=True):
        if found <= until:
            return found
    raise ValueError(f"cron: {cron!r} names no time")


def _times(cron: str, time_zone: str, moment: datetime, *, reverse: bool) -> Iterator[datetime]:
    local = moment.astimezone(UTC if time_zone in ("UTC", "Etc/UTC") else ZoneInfo(time_zone))
    return (found.astimezone(UTC) for found in CronSim(MACROS.get(cron, cron), local, reverse=reverse))


def _words(error: Exception) -> str:
    said = str(error)
    return said[0].lower() + said[1:] if said else "it cannot be read"
