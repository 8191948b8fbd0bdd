"""What clients were told and saw, one line of JSON each: ``["Acknowledged", 12.5, "writer-1", 0, 17, 230, 12.4]``.

Each process writes a file of its own. Times are seconds of CLOCK_MONOTONIC, which is one clock for the whole machine.
``who`` names one session of one client: a consumer that is assigned partitions anew is somebody new. ``topic`` is the
id of the topic as the client knew it when it sent the request (``asked``, ``sent``); a topic that is deleted and made
anew has another id.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

UNKNOWN = -1
TOMBSTONE = "value"
"""The header that says whose a record without a value is."""
NEVER = -1.0
"""The time of an answer that never came."""


class Acknowledged(NamedTuple):
    """A producer was told that its record is kept, and mostly at which offset (else it is UNKNOWN)."""

    at: float
    who: str
    partition: int
    number: int
    offset: int
    sent: float
    topic: str = ""


class Failed(NamedTuple):
    """A producer gave up: the record may be kept or not."""

    at: float
    who: str
    partition: int
    number: int
    error: str
    topic: str = ""
    sent: float = 0.0


class Read(NamedTuple):
    """A consumer saw a record: its offset, and who wrote it with which number."""

    at: float
    who: str
    partition: int
    offset: int
    writer: str
    number: int
    topic: str = ""
    asked: float = 0.0


class Committed(NamedTuple):
    """A member of the group was told that its position is kept."""

    at: float
    who: str
    partition: int
    offset: int
    topic: str = ""
    asked: float = 0.0


class CommitUnknown(NamedTuple):
    """A member tried to keep its position (at ``at``) and did not learn what became of it: it may count at any time."""

    at: float
    who: str
    partition: int
    offset: int
    topic: str = ""


class FoundCommitted(NamedTuple):
    """Somebody asked for the group's position at ``asked`` and was told at ``at``; -1 is none."""

    at: float
    who: str
    partition: int
    offset: int
    asked: float
    topic: str = ""


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
    topic: str = ""


class Struck(NamedTuple):
    """A fault: what, and when it began and was undone."""

    at: float
    who: str
    text: str
    until: float


class TopicCreated(NamedTuple):
    """A topic exists under its name from ``at`` on, or a little before, though not before ``asked``."""

    at: float
    who: str
    topic: str
    name: str
    asked: float
    is_compacted: bool


class TopicDeleted(NamedTuple):
    """The topic's deletion was requested at ``asked``, and its name was free at ``at``."""

    at: float
    who: str
    topic: str
    asked: float


class RecordsDeleted(NamedTuple):
    """DeleteRecords before an offset, requested at ``asked``; ``at`` is NEVER where no answer came."""

    at: float
    who: str
    topic: str
    partition: int
    offset: int
    asked: float


class ConfigAltered(NamedTuple):
    """A topic's configuration was changed, or may have been, since ``asked``."""

    at: float
    who: str
    topic: str
    key: str
    value: str
    asked: float


class GroupDeleted(NamedTuple):
    """The group of the positions was deleted; ``at`` is NEVER where no answer came."""

    at: float
    who: str
    asked: float


Event = (
    Acknowledged
    | Failed
    | Read
    | Committed
    | CommitUnknown
    | FoundCommitted
    | Trouble
    | Led
    | Struck
    | TopicCreated
    | TopicDeleted
    | RecordsDeleted
    | ConfigAltered
    | GroupDeleted
)
KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__args__}


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


KEYS = 23
ONCE_EVERY = 150
"""Of so many numbers of a writer four go to a key that no later number has."""
ONCE = {10: False, 40: False, 60: True, 90: False}
"""Their places, and whether it is a tombstone. The last comes in every second round; otherwise the key stays away."""


def key_of(writer: str, number: int) -> tuple[str, bool]:
    """The key of a writer's record in a compacted topic, and whether the record is a tombstone."""
    number_round, place = divmod(number, ONCE_EVERY)
    if place in ONCE and not (place == 90 and number_round % 2):
        return f"{writer}-once-{number_round}", ONCE[place]
    drawn = crc32(f"{writer}:{number}".encode())
    return f"{writer}-{drawn % KEYS}", drawn // KEYS % 4 == 0
