"""AUDIT.json: one audit, in full.

    {"name": "flights-audit",
     "bootstrap": "host:9092", "topics": ["flights"],
     "window": "10 minutes",                a record belongs to the window of its time; they begin at multiples, in UTC
     "grace": "1 hours",                    a window stays open for this long after its end
     "from": "2026-07-01T00:00:00Z",        windows that begin at or after it; left out: all
     "until": "2026-08-01T00:00:00Z",       windows that begin before it; left out: all
     "last": "2 days",                      in place of both: windows that began within the last two days
     "time": "meta.created",                the JSON field that has a record's time; left out: its time in the log
     "server": {"header": "server"},        which server sent a record: a header, or {"field": "meta.host"}
     "reports": "audits",                   the topic of producers' reports, see `reported`
     "tables": [{"format": "Delta", "path": "/lake/flights"}],    tables of loads, each as in RUN.json's output
     "output": {"format": "Delta", "path": "/lake/_audits"},      as in RUN.json: the table that gets the audit's rows
     "report": "/lake/_audits.html",        a file, or s3a://BUCKET/FILE with `s3`
     "maxMissing": 0,                       the job fails if more records are missing; left out: never
     "minPartitions": …, "s3": …, "result": …, "login": …, "tls": …}    as in RUN.json

It needs `reports`, `tables`, or both: records are missing when one of them differs from the log.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from millstream_jobs.brokers import Bootstrap, Brokers, Login, Tls
from millstream_jobs.run import (
    ALLOWED,
    S3,
    BadRun,
    Output,
    Topic,
    check_output,
    read_config,
)

Time = Annotated[datetime, Meta(tz=True)]
UNITS = ("seconds", "minutes", "hours", "days")
Duration = Annotated[str, Meta(pattern=rf"^[1-9][0-9]{{0,5}} ({'|'.join(UNITS)})$")]
FieldPath = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]


class Server(Struct, frozen=True, forbid_unknown_fields=True):
    """The source of a record's server name; exactly one."""

    header: Annotated[str, Meta(min_length=1)] | None = None
    field: FieldPath | None = None


class Audit(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,170}$")]
    """Shorter than a run's: the rows of each start are a run `NAME-TIME`."""
    bootstrap: Bootstrap
    topics: Annotated[tuple[Topic, ...], Meta(min_length=1)]
    window: Duration = "10 minutes"
    grace: Duration = "1 hours"
    since: Time | None = field(name="from", default=None)
    until: Time | None = None
    last: Duration | None = None
    time: FieldPath | None = None
    server: Server | None = None
    reports: Topic | None = None
    tables: tuple[Output, ...] = ()
    output: Output | None = None
    report: Annotated[str, Meta(pattern=r"^(/|s3a://[^/]+/).*[^/]$")] | None = None
    max_missing: Annotated[int, Meta(ge=0)] | None = None
    min_partitions: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    s3: S3 = S3()
    result: str = ""
    login: Login | None = None
    tls: Tls | None = None

    @property
    def brokers(self) -> Brokers:
        return Brokers(self.bootstrap, self.login, self.tls)

    @property
    def window_s(self) -> int:
        return seconds(self.window)

    @property
    def grace_s(self) -> int:
        return seconds(self.grace)

    def begin(self, now: datetime) -> datetime | None:
        """The time from which windows count."""
        return now - timedelta(seconds=seconds(self.last)) if self.last else self.since


_NO_ZERO = '"30 seconds", "10 minutes", "1 hours" or "2 days": a number above zero and a unit'
ALLOWED.update(
    {
        "window": _NO_ZERO,
        "grace": _NO_ZERO,
        "last": _NO_ZERO,
        "time": "a JSON field such as created or meta.created",
        "server.field": "a JSON field such as host or meta.host",
        "path": "an absolute path, or s3a://BUCKET/FOLDER",
        "report": "an absolute path of a file, or s3a://BUCKET/FILE",
    }
)


def seconds(duration: str) -> int:
    number, unit = duration.split()
    return int(number) * {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}[unit]


def utc(seconds: int) -> datetime:
    """Seconds since 1970 as a time in UTC; times collected by Spark have the zone of the driver's machine."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def read_audit(path: Path) -> Audit:
    wanted = read_config(path, Audit)
    if said := _problem(wanted):
        raise BadRun(f"{path}: {said}")
    for index, table in enumerate(wanted.tables):
        check_output(table, path, f"tables[{index}]")
    if wanted.output is not None:
        check_output(wanted.output, path)
    return wanted


def _problem(wanted: Audit) -> str | None:
    if not wanted.tables and wanted.reports is None:
        return "reports or tables: one of them is needed: the log alone does not say what it has lost"
    if len(set(wanted.topics)) < len(wanted.topics):
        return "topics: a topic is listed twice"
    if wanted.reports in wanted.topics:
        return f"reports: {wanted.reports} is not allowed: it is one of topics"
    if wanted.last and (wanted.since or wanted.until):
        return "last: not allowed with from or until: write one or the other"
    if wanted.since and wanted.until and wanted.until <= wanted.since:
        return f"until: {wanted.until} is not allowed: it is not after from, {wanted.since}"
    if wanted.server is not None and (wanted.server.header is None) == (wanted.server.field is None):
        return "server: write either header or field"
    if wanted.output is not None and wanted.output.mode != "Append":
        return f"output.mode: {wanted.output.mode} is not allowed: each audit adds its rows"
    return None
