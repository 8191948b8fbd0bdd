"""What clients saw, one line of JSON an event: ``["Acknowledged", 12.5, "writer-1", 0, 17, 230, 12.4]``.

Each process writes its own file. Times are seconds of CLOCK_MONOTONIC, one clock for the whole machine.
``who`` names one session of one client: a consumer with a new assignment gets a new name. ``topic`` is the
topic id that the client knew when it sent the request (``asked``, ``sent``); a recreated topic has another id.
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
"""The header that names the writer of a record without a value."""
NEVER = -1.0
"""The time of an answer that never came."""


class Acknowledged(NamedTuple):
    """A producer got an acknowledgement, usually with the offset (else it is UNKNOWN)."""

    at: float
    who: str
    partition: int
    number: int
    offset: int
    sent: float
    topic: str = ""


class Failed(NamedTuple):
    """A producer gave up: the log may or may not have the record."""

    at: float
    who: str
    partition: int
    number: int
    error: str
    topic: str = ""
    sent: float = 0.0


class Read(NamedTuple):
    """A consumer saw a record: its offset, its writer and the writer's number."""

    at: float
    who: str
    partition: int
    offset: int
    writer: str
    number: int
    topic: str = ""
    asked: float = 0.0


class Committed(NamedTuple):
    """A group member got the acknowledgement of its committed position."""

    at: float
    who: str
    partition: int
    offset: int
    topic: str = ""
    asked: float = 0.0


class CommitUnknown(NamedTuple):
    """A member's commit (at ``at``) got no answer: it may take effect at any time."""

    at: float
    who: str
    partition: int
    offset: int
    topic: str = ""


class FoundCommitted(NamedTuple):
    """A client requested the group's position at ``asked`` and got the answer at ``at``; -1 is none."""

    at: float
    who: str
    partition: int
    offset: int
    asked: float
    topic: str = ""


class Trouble(NamedTuple):
    """An error that no client may ever see, whatever breaks."""

    at: float
    who: str
    text: str


class Led(NamedTuple):
    """The new leader of a partition, as the brokers tell clients."""

    at: float
    who: str
    partition: int
    leader: int
    epoch: int
    isr: list[int]
    topic: str = ""


class Struck(NamedTuple):
    """A fault: its text, when it began and when it was undone."""

    at: float
    who: str
    text: str
    until: float


class TopicCreated(NamedTuple):
    """A topic has had its name since ``at`` or slightly earlier, but not since before ``asked``."""

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


class TopicLost(NamedTuple):
    """A tree restored at ``asked`` does not know the topic, and another one had its name at ``at``."""

    at: float
    who: str
    topic: str
    asked: float


class Held(NamedTuple):
    """The strays and the logs on a broker's disk, each as topic id and partition."""

    at: float
    who: str
    broker: int
    strays: list[list[str | int]]
    logs: list[list[str | int]]


class Discarded(NamedTuple):
    """A fault removes or replaces a broker's data."""

    at: float
    who: str
    broker: int


class RecordsDeleted(NamedTuple):
    """DeleteRecords before an offset, requested at ``asked``; ``at`` is NEVER if no answer came."""

    at: float
    who: str
    topic: str
    partition: int
    offset: int
    asked: float


class ConfigAltered(NamedTuple):
    """A topic's configuration changed, or may have changed, since ``asked``."""

    at: float
    who: str
    topic: str
    key: str
    value: str
    asked: float


class GroupDeleted(NamedTuple):
    """The group of the positions was deleted; ``at`` is NEVER if no answer came."""

    at: float
    who: str
    asked: float


class Transacted(NamedTuple):
    """A transaction ended for its writer: it was ``committed``, ``aborted``, or nobody told (``unknown``).

    ``asked`` is when the commit was first requested, NEVER if it was not. ``appends`` and ``reads`` are values, each
    as topic id, writer, partition and number.
    """

    at: float
    who: str
    number: int
    outcome: str
    asked: float
    appends: list[list[str | int]]
    reads: list[list[str | int]]


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
    | TopicLost
    | Held
    | Discarded
    | RecordsDeleted
    | ConfigAltered
    | GroupDeleted
    | Transacted
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
    """Every process's events, in the order written. Raises ValueError for a line that is not an event."""
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
    """A record's value, which names its writer and its place."""
    return f"{writer}:{partition}:{number}:".encode().ljust(size, b"x")


def parse_value(value: bytes) -> tuple[str, int, int]:
    """Writer, partition and number; the writer is ``?`` for a record from no writer of this run."""
    parts = value.split(b":", 3)
    if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit() and not parts[3].strip(b"x"):
        return parts[0].decode(errors="replace"), int(parts[1]), int(parts[2])
    return "?", -1, -1


KEYS = 23
ONCE_EVERY = 150
"""Length of a round of a writer's numbers; four numbers of each have a key of their own."""
ONCE = {10: False, 40: False, 60: True, 90: False}
"""Places of the four in a round: whether each is a tombstone. The last exists only in every second round."""


def key_of(writer: str, number: int) -> tuple[str, bool]:
    """The key of a writer's record in a compacted topic, and whether the record is a tombstone."""
    number_round, place = divmod(number, ONCE_EVERY)
    if place in ONCE and not (place == 90 and number_round % 2):
        return f"{writer}-once-{number_round}", ONCE[place]
    drawn = crc32(f"{writer}:{number}".encode())
    return f"{writer}-{drawn % KEYS}", drawn // KEYS % 4 == 0
