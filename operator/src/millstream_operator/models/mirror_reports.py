"""The reports of a mirror's workers, as they answer GET /status; pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .mirror import SetAside
from .words import count_of


class WorkerLag(msgspec.Struct, frozen=True):
    records: int = 0
    seconds: float = 0.0


class GapReport(msgspec.Struct, frozen=True, rename={"first": "from"}):
    """Offsets of a source's partition that the target lacks: from ``first`` to before ``until``."""

    partition: str
    first: int
    until: int
    stopped: bool


class ProblemReport(msgspec.Struct, frozen=True):
    """Why part of the desired records is not mirrored.

    ``reason``: one of ``PROBLEMS`` in reconcile/mirror/plan.py, or ``REJOINING``.
    """

    reason: str = ""
    message: str = ""


class WorkerRate(msgspec.Struct, frozen=True):
    """Records and bytes a second, over the last ten."""

    records: float = 0.0
    bytes: float = 0.0


class SourceReport(msgspec.Struct, frozen=True, rename="camel"):
    """One worker's report about one source."""

    name: str
    reachable: bool = False
    topics: int = 0
    topic_names: tuple[str, ...] | None = None
    lag: WorkerLag = WorkerLag()
    last_error: str = ""
    groups: int | None = None
    gaps: tuple[GapReport, ...] = ()
    replaced: tuple[str, ...] = ()
    """Topics that were deleted and created again in the source."""
    reason: str = ""
    """The reason why it is not reachable: a key of ``REASONS`` in reconcile/mirror/plan.py."""
    problems: tuple[ProblemReport, ...] = ()
    matched: int | None = None
    """Topics that the patterns select; None before the first listing."""
    unmatched: tuple[str, ...] = ()
    """Patterns that select no topic of the source."""
    unmatched_groups: tuple[str, ...] | None = None
    """Patterns that select no group of the source; None if they are not known."""
    rate: WorkerRate = WorkerRate()
    set_aside: tuple[SetAside, ...] = ()
    promoted: tuple[str, ...] = ()
    """Topics of the target that the mirror left alone because they were promoted."""
    seen_ms: int = 0
    """Time up to which the worker knew the ends of all its partitions in the source."""
    partitions: int = 0
    wanted: int | msgspec.UnsetType | None = msgspec.UNSET
    """Partitions that all workers together have to mirror; None if the worker does not know it yet. Workers of older
    releases do not report it."""
    starting: int = 0
    """Partitions of this worker whose end in the source it does not know yet."""
    new: int = 0
    """Partitions of this worker that have not had all records of the source yet, since the mirror began them."""


class TargetReport(msgspec.Struct, frozen=True, rename="camel"):
    reachable: bool = True
    reason: str = ""
    last_error: str = ""


class WorkerReport(msgspec.Struct, frozen=True, rename="camel"):
    """One worker's response to GET /status: its share of the partitions, and their topics."""

    topics: int = 0
    lag: WorkerLag = WorkerLag()
    sources: tuple[SourceReport, ...] = ()
    target: TargetReport = TargetReport()


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers: their number, how many are ready, the reports of those that responded, and why one ended.

    ``waiting``: why one does not start. ``updated``: how many run with the present spec; None means all. ``silent``:
    how many ready ones did not answer.
    """

    replicas: int = 0
    ready: int = 0
    reports: tuple[WorkerReport, ...] = ()
    failure: str = ""
    waiting: str = ""
    updated: int | None = None
    silent: int = 0

    @property
    def silence(self) -> str:
        """How many did not answer, in words; "" if all did."""
        if not self.silent:
            return ""
        return f"{self.silent} of {count_of(self.silent + len(self.reports), 'worker')} did not answer"
