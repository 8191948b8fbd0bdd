"""The steps of a `TransactionStory`: requests of producers and administrators, and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .story_members import NOBODY, Join, Leave

TIMEOUT_MS = 60_000
NEXT, AGAIN, GAP, FIRST = "next", "again", "gap", "first"


class Bearer(NamedTuple):
    """The producer that got the last id and epoch of transactional id `of`, or the one `back` before it, with an epoch
    that is `shift` higher."""

    of: int
    back: int = 0
    shift: int = 0


class Init(NamedTuple):
    of: int
    version: int
    timeout_ms: int = TIMEOUT_MS
    bearer: Bearer | None = None


class Raise(NamedTuple):
    """New producers of a transactional id, until one has this epoch."""

    of: int
    epoch: int


class Add(NamedTuple):
    """Version 4 and later only: `verify_only`."""

    of: int
    bearer: Bearer
    version: int
    partitions: Sequence[int]
    verify_only: bool = False


class AddOffsets(NamedTuple):
    of: int
    bearer: Bearer
    version: int
    group: int


class CommitOffsets(NamedTuple):
    of: int
    bearer: Bearer
    version: int
    group: int
    partition: int
    generation: int = -1
    member: str = NOBODY
    instance: str | None = None


class Produce(NamedTuple):
    of: int
    bearer: Bearer
    version: int
    partition: int
    sequence: str = NEXT
    records: int = 1


class End(NamedTuple):
    of: int
    bearer: Bearer
    version: int
    commits: bool


class Mark(NamedTuple):
    """What an administrator sends, to end a transaction in a log alone."""

    bearer: Bearer
    version: int
    commits: bool
    partition: int


class PlainCommit(NamedTuple):
    group: int
    partition: int


class Positions(NamedTuple):
    group: int
    stable: bool


class Look(NamedTuple):
    pass


class TimeOuts(NamedTuple):
    """Wait until the coordinator has aborted every transaction."""


Step = (
    Init
    | Raise
    | Add
    | AddOffsets
    | CommitOffsets
    | Produce
    | End
    | Mark
    | PlainCommit
    | Positions
    | Join
    | Leave
    | Look
    | TimeOuts
)
