"""What the checker finds, and what it holds a history against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold; where it concerns a record or an offset, which."""

    kind: str
    text: str
    partition: int | None = None
    offset: int | None = None
    writer: str | None = None
    number: int | None = None
    at: float | None = None
    """When somebody was told what is wrong, where that is one moment."""
    topic: str = ""
    """The topic's id."""


class Entry(NamedTuple):
    """A record of the log that is left."""

    offset: int
    writer: str
    partition: int
    number: int
    key: str = ""


class Batch(NamedTuple):
    """A batch as a replica has it on its disk."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    length: int


class Copy(NamedTuple):
    """A partition on one broker's disk."""

    start: int
    """The base offset of its first segment."""
    batches: Sequence[Batch]
