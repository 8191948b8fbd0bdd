"""The checker's findings, and the logs it compares with the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, and its record or offset, if any."""

    kind: str
    text: str
    partition: int | None = None
    offset: int | None = None
    writer: str | None = None
    number: int | None = None
    at: float | None = None
    """The time of the wrong answer, if there is a single one."""
    topic: str = ""
    """The topic's id."""


class Entry(NamedTuple):
    """A record in a log at the end of the run."""

    offset: int
    writer: str
    partition: int
    number: int
    key: str = ""


class Fated(NamedTuple):
    """A record in a log at the end of the run, and how its transaction ended there."""

    offset: int
    writer: str
    partition: int
    number: int
    fate: str
    """COMMITTED, ABORTED or OPEN."""


COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"


class Batch(NamedTuple):
    """A batch on a replica's disk."""

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
