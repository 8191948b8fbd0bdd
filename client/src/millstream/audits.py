"""Compares producers' reports with the log: produced, received, missing, duplicated, late; without Spark.

`AuditTally` is pure: reports and records in, rows out. A record belongs to the window of its stamp's time and to its
stamp's server. Numbers of stamps show which records are missing or duplicated, and between which offsets.

produced    acknowledged, according to the producers
received    records in the log, each once
missing     produced, but not in the log
duplicated  extra copies of a stamp in the log
late        after records of its partition that are more than a window younger
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from millstream.errors import BadInput
from millstream.producing.stamps import STAMP_HEADER

MAX_TIME_MS: Final = 253_402_300_800_000  # the year 10000
MAX_GAPS: Final = 20
"""Limit of reported gaps in a producer's numbers."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One topic, window and server. ``window_start``: ISO 8601."""

    topic: str
    window_start: str
    server: str
    produced: int
    received: int
    missing: int
    duplicated: int
    late: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers ``first`` to ``last`` of a producer are not in the log.

    ``after`` is partition and offset of the record before them, None without one.
    """

    topic: str
    server: str
    producer: str
    first: int
    last: int
    after: tuple[int, int] | None


class AuditTally:
    """Feed reports and records in any order (records of a partition by offset), then take `rows` and `gaps`."""

    def __init__(self, topics: Iterable[str], window_s: int) -> None:
        if window_s < 1:
            raise BadInput(f"window: {window_s} is not allowed", "write a number of seconds above zero")
        self._topics, self._window_s = set(topics), window_s
        self._reports: dict[tuple[str, str, int, str], tuple[int, int]] = {}
        self._received: Counter[tuple[str, int, str]] = Counter()
        self._duplicated: Counter[tuple[str, int, str]] = Counter()
        self._late: Counter[tuple[str, int, str]] = Counter()
        self._newest: dict[tuple[str, int], int] = {}
        self._seen: dict[tuple[str, str, str], dict[int, tuple[int, int]]] = defaultdict(dict)
        self.bad_reports = self.unstamped = 0

    def report(self, data: bytes | None) -> None:
        """A producer's report; a repeated one replaces the first, and an unreadable one counts as bad."""
        try:
            found = json.loads(data or b"")
            if found["topic"] not in self._topics:
                return
            begin = int(datetime.fromisoformat(found["windowStart"]).timestamp())
            if begin // self._window_s != (begin + int(found["windowSeconds"]) - 1) // self._window_s:
                raise ValueError("it overlaps two windows")
            key = (found["topic"], found.get("server", ""), begin, found.get("producer", ""))
            order, count = int(found.get("sequence", 0)), int(found["count"])
        except (ValueError, KeyError, TypeError, AttributeError):
            self.bad_reports += 1
            return
        if key not in self._reports or order >= self._reports[key][0]:
            self._reports[key] = (order, count)

    def record(self, topic: str, partition: int, offset: int, headers: Any) -> None:
        """A record of the log."""
        stamp = next((value for name, value in reversed(headers) if name == STAMP_HEADER and value), None)
        server = next((value for name, value in reversed(headers) if name == "server" and value), b"")
        try:
            producer, number_text, at_text = (stamp or b"").decode().split(":")
            number, at = int(number_text), int(at_text)
            if not 0 <= at < MAX_TIME_MS:
                raise ValueError("its year is out of range")
        except ValueError:
            self.unstamped += 1
            return
        name = server.decode(errors="replace")
        cell = (topic, at // 1000 // self._window_s * self._window_s, name)
        seen = self._seen[topic, name, producer]
        if number in seen:
            self._duplicated[cell] += 1
            return
        seen[number] = (partition, offset)
        self._received[cell] += 1
        newest = self._newest.get((topic, partition), at)
        if at < newest - self._window_s * 1000:
            self._late[cell] += 1
        self._newest[topic, partition] = max(newest, at)

    def rows(self) -> list[AuditRow]:
        """By topic, window and server."""
        produced: Counter[tuple[str, int, str]] = Counter()
        for (topic, server, begin, _), (_, count) in self._reports.items():
            produced[topic, begin // self._window_s * self._window_s, server] += count
        return [
            AuditRow(
                topic=cell[0],
                window_start=f"{datetime.fromtimestamp(cell[1], UTC):%Y-%m-%dT%H:%M:%SZ}",
                server=cell[2],
                produced=produced[cell],
                received=self._received[cell],
                missing=max(produced[cell] - self._received[cell], 0),
                duplicated=self._duplicated[cell],
                late=self._late[cell],
            )
            for cell in sorted({*produced, *self._received, *self._duplicated})
        ]

    def gaps(self) -> list[Gap]:
        """Gaps before a producer's last record, at most MAX_GAPS.

        Records missing at its end show only in the rows. A record that its producer knew to have failed is a gap, too.
        """
        found: list[Gap] = []
        for (topic, server, producer), seen in sorted(self._seen.items()):
            before = -1
            for number in sorted(seen):
                if number > before + 1:
                    found.append(Gap(topic, server, producer, before + 1, number - 1, seen.get(before)))
                before = number
        return found[:MAX_GAPS]
