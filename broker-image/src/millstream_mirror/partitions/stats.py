"""Statistics of a source's mirroring, and `/status` as JSON; metrics.py has `/metrics`."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream_kafka.client import SecurityFailed

from ..kafka.progress import Gap
from .diverged_partition import DivergedPartition
from .partition_task import PartitionTask, Written

GAPS = 10
PROBLEMS = 10
"""Limit of problems per reason."""
DIVERGED_PARTITIONS = 100
"""Limit of partitions in the status of a source."""
GAP_SHOWN_MS = 24 * 3600 * 1000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Counters since the worker started."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    rebuilt_batches: int = 0
    repeated_records: int = 0
    """Records that the target already had, so they were not written again."""
    missing_records: int = 0
    """Offsets that the source had deleted before they were mirrored."""
    renumbered_partitions: int = 0
    """Number of times a task continued under a new epoch, so that records may be in the target twice."""
    failures: int = 0
    commits: int = 0
    positions: int = 0
    """Positions of consumer groups committed in the target."""
    throttled_seconds: float = 0.0
    """Total time that fetches waited for the limit."""


@dataclass(slots=True)
class Reachability:
    """Whether a cluster responds; logs each change once, under ``name``."""

    name: str
    bootstrap: str
    reachable: bool = False
    error: str = ""
    reason: str = ""
    """Machine-readable reason if it does not."""

    def lost(self, error: Exception) -> None:
        if self.reachable or not self.error:
            logger.warning("%s: %s", self.name, error)
        self.reachable, self.error = False, str(error)
        self.reason = type(error).__name__ if isinstance(error, SecurityFailed) else "Unreachable"

    def found(self) -> None:
        if not self.reachable:
            logger.info("%s: reached at %s", self.name, self.bootstrap)
        self.reachable, self.error, self.reason = True, "", ""

    def as_json(self) -> dict[str, Any]:
        return {"reachable": self.reachable, "reason": self.reason, "lastError": self.error}


class Rate:
    """Records and bytes a second, over the last ten seconds. No I/O: the caller passes the time, in seconds."""

    WINDOW_S = 10.0

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def sample(self, now: float, counters: Counters) -> None:
        """Call it at least twice per window."""
        self._samples.append((now, counters.records, counters.bytes))
        while len(self._samples) > 1 and self._samples[1][0] <= now - self.WINDOW_S:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float]:
        """Records, bytes."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        (begin, records, size), (end, more_records, more_size) = self._samples[0], self._samples[-1]
        seconds = max(end - begin, 0.001)
        return (more_records - records) / seconds, (more_size - size) / seconds


@dataclass(frozen=True, slots=True)
class Problem:
    """Why records are not mirrored: a machine-readable reason, and a text that says what to do."""

    reason: str
    message: str

    def as_json(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message}


def bounded_problems(problems: Iterable[Problem]) -> list[Problem]:
    """The first ``PROBLEMS`` of each reason."""
    found: list[Problem] = []
    counts = Counter[str]()
    for problem in problems:
        counts[problem.reason] += 1
        if counts[problem.reason] <= PROBLEMS:
            found.append(problem)
    return found


@dataclass(frozen=True, slots=True)
class PartitionGap:
    """Offsets that a partition lacks in the target, and whether its mirroring stopped there."""

    task: str
    gap: Gap
    stopped: bool

    def as_json(self) -> dict[str, Any]:
        gap = self.gap
        return {"partition": self.task, "from": gap.offset, "until": gap.next_offset, "stopped": self.stopped}


def gaps_of(tasks: Iterable[PartitionTask], now_ms: int) -> list[PartitionGap]:
    """First the gaps at which tasks stopped, then those skipped in the last day, newest first; at most ``GAPS``."""
    stopped = [PartitionGap(str(task), task.gap, True) for task in tasks if task.gap]
    passed = [
        PartitionGap(str(task), task.acknowledged.gap, False)
        for task in tasks
        if task.acknowledged.gap and now_ms - task.acknowledged.gap.at_ms < GAP_SHOWN_MS
    ]
    passed.sort(key=lambda found: found.gap.at_ms, reverse=True)
    return [*stopped, *passed][:GAPS]


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """Status of this worker's share of a topic."""

    records: int
    bytes: int
    lag_records: int
    lag_seconds: float


def by_topic(
    tasks: Iterable[PartitionTask], written: Mapping[str, Written], now_ms: int
) -> dict[str, TopicStatus]:
    lags: dict[str, tuple[int, float]] = {}
    for task in tasks:
        records, seconds = lags.get(task.target_topic, (0, 0.0))
        lags[task.target_topic] = records + task.lag, max(seconds, task.lag_seconds(now_ms))
    return {
        topic: TopicStatus(counts.records, counts.bytes, *lags.get(topic, (0, 0.0)))
        for topic, counts in written.items()
    }


@dataclass(frozen=True, slots=True)
class SourceStatus:
    name: str
    reachable: bool
    topics: Sequence[str]
    tasks: int
    lag_records: int
    lag_seconds: float
    last_error: str
    counters: Counters = field(default_factory=Counters)
    groups: int | None = None
    """Selected consumer groups; None if `groups` is not set."""
    gaps: Sequence[PartitionGap] = ()
    replaced: Sequence[str] = ()
    """Topics that wait because they were deleted and created again in the source."""
    reason: str = ""
    """The reason why the source does not respond."""
    target: dict[str, Any] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    matched: int | None = None
    """Topics of the source that the patterns select; None before the first refresh."""
    limit: int | None = None
    """Bytes a second, for all workers together."""
    rate: tuple[float, float] = (0.0, 0.0)
    """Records and bytes a second."""
    by_topic: Mapping[str, TopicStatus] = field(default_factory=dict)
    """By topic of the target."""
    diverged: Sequence[DivergedPartition] = ()
    """Diverged records of topics that were resynced; known to the worker that leads the group."""
    promoted: Sequence[str] = ()
    """Topics of the target that are left alone because they were promoted."""
    observed_ms: int = 0
    """Time up to which all tasks knew the ends of the source's logs."""
    wanted: int | None = None
    """Partitions that all workers together have to mirror; None if that is not known yet."""
    starting: int = 0
    """This worker's tasks that do not know the end of the source's log yet, and are in no other report."""
    new: int = 0
    """This worker's tasks that lack records which the source had when they began, or later ones, and never had all."""
    waiting: int = 0
    """This worker's partitions that have not been mirrored for a while (waiting.py)."""
    unmatched: Sequence[str] = ()
    """Patterns that match no topic of the source."""
    unmatched_groups: Sequence[str] | None = None
    """Patterns that match no group of the source; None before its groups are listed, and without `groups`."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reachable": self.reachable,
            "reason": self.reason,
            "topics": len(self.topics),
            "topicNames": list(self.topics),
            "partitions": self.tasks,
            "wanted": self.wanted,
            "starting": self.starting,
            "new": self.new,
            "waiting": self.waiting,
            "lag": {"records": self.lag_records, "seconds": round(self.lag_seconds, 3)},
            "groups": self.groups,
            "gaps": [gap.as_json() for gap in self.gaps],
            "replaced": list(self.replaced),
            "setAside": [partition.as_json() for partition in self.diverged[:DIVERGED_PARTITIONS]],
            "problems": [problem.as_json() for problem in bounded_problems(self.problems)],
            "matched": self.matched,
            "unmatched": list(self.unmatched),
            "unmatchedGroups": None if self.unmatched_groups is None else list(self.unmatched_groups),
            "rate": {"records": round(self.rate[0], 1), "bytes": round(self.rate[1])},
            "lastError": self.last_error,
            "missingRecords": self.counters.missing_records,
            "promoted": list(self.promoted),
            "seenMs": self.observed_ms,
        }


def status_json(sources: Sequence[SourceStatus], member: str) -> dict[str, Any]:
    """The status of all sources; topics are those of the target that this worker writes to."""
    return {
        "topics": len({topic for source in sources for topic in source.topics}),
        "lag": {
            "records": sum(source.lag_records for source in sources),
            "seconds": round(max((source.lag_seconds for source in sources), default=0.0), 3),
        },
        "sources": [source.as_json() for source in sources],
        "target": next(
            (source.target for source in sources if not source.target.get("reachable")), sources[0].target
        ),
        "member": member,
    }
