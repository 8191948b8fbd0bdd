"""What clients were told and saw, one line of JSON each: ``["Acknowledged", 12.5, "writer-1", 0, 17, 230, 12.4]``.

Each process writes a file of its own. Times are seconds of CLOCK_MONOTONIC, which is one clock for the whole machine.
``who`` names one session of one client: a consumer that is assigned partitions anew is somebody new.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

UNKNOWN = -1


class Acknowledged(NamedTuple):
    """A producer was told that its record is kept, and mostly at which offset (else it is UNKNOWN)."""

    at: float
    who: str
    partition: int
    number: int
    offset: int
    sent: float


class Failed(NamedTuple):
    """A producer gave up: the record may be kept or not."""

    at: float
    who: str
    partition: int
    number: int
    error: str


class Read(NamedTuple):
    """A consumer saw a record: its offset, and who wrote it with which number."""

    at: float
    who: str
    partition: int
    offset: int
    writer: str
    number: int


class Committed(NamedTuple):
    """A member of the group was told that its position is kept."""

    at: float
    who: str
    partition: int
    offset: int


class CommitUnknown(NamedTuple):
    """A member tried to keep its position (at ``at``) and did not learn what became of it: it may count at any time."""

    at: float
    who: str
    partition: int
    offset: int


class FoundCommitted(NamedTuple):
    """Somebody asked for the group's position at ``asked`` and was told at ``at``; -1 is none."""

    at: float
    who: str
    partition: int
    offset: int
    asked: float


class Trouble(NamedTuple):
    """What must not happen to anybody, whatever breaks."""

    at: float
    who: str
    text: str


class Led(NamedTuple):
    """Who leads a partition from now on, as the brokers tell clients."""

    at: float
    who: str
    partition: int
    leader: int
    epoch: int
    isr: list[int]


class Struck(NamedTuple):
    """A fault: what, and when it began and was undone."""

    at: float
    who: str
    text: str
    until: float


Event = Acknowledged | Failed | Read | Committed | CommitUnknown | FoundCommitted | Trouble | Led | Struck
KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (Acknowledged, Failed, Read, Committed, CommitUnknown, FoundCommitted, Trouble, Led, Struck)
}


class HistoryWriter:
    """Appends events to one process's file, from any of its threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1 << 16)
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        line = json.dumps([type(event).__name__, *event], separators=(",", ":"))
        with self._lock:
            self._file.write(line + "\n")

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_history(folder: Path) -> Iterator[Event]:
    """Every process's events, each in the order in which it wrote them. ValueError names a line that is none."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    kind, *fields = json.loads(line)
                    event = KINDS[kind](*fields)
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"{path}:{number}: not an event: {line[:80]!r}") from error
                yield event


def value_of(writer: str, partition: int, number: int, size: int) -> bytes:
    """A record's value, which says whose it is and where it belongs."""
    return f"{writer}:{partition}:{number}:".encode().ljust(size, b"x")


def parse_value(value: bytes) -> tuple[str, int, int]:
    """Writer, partition and number; a writer ``?`` for what is nobody's."""
    parts = value.split(b":", 3)
    if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit() and not parts[3].strip(b"x"):
        return parts[0].decode(errors="replace"), int(parts[1]), int(parts[2])
    return "?", -1, -1
