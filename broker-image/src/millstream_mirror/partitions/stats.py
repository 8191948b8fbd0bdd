"""Statistics of a source's mirroring: `/status` as JSON, `/metrics` for Prometheus."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from millstream_kafka import __version__
from millstream_kafka.client import SecurityFailed
from millstream_process.loop import Stalls
from millstream_process.metrics import Labels, Metric, Page, bounded

from ..kafka.progress import Gap
from .diverged_partition import DivergedPartition
from .partition_task import PartitionTask, Written
from .waiting import LONG_S

SOURCE = ("source",)
TOPIC = ("source", "topic")
MOST_TOPICS = 1000
"""Limit of a source's topics in one metric."""
PER_TOPIC = f", by topic of the target; beyond {MOST_TOPICS} topics the rest counts as (others)"
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


TABLE = (
    Metric("millstream_mirror_info", "gauge", "1", "The worker's version.", ("version",)),
    Metric("millstream_mirror_records_total", "counter", "records", "Records written to the target.", SOURCE),
    Metric(
        "millstream_mirror_bytes_total",
        "counter",
        "bytes",
        "Bytes of record batches written to the target.",
        SOURCE,
    ),
    Metric("millstream_mirror_batches_total", "counter", "batches", "Batches written to the target.", SOURCE),
    Metric(
        "millstream_mirror_rebuilt_batches_total",
        "counter",
        "batches",
        "Batches that could not be forwarded unchanged.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_repeated_records_total",
        "counter",
        "records",
        "Records found in the target and not sent again.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_missing_records_total",
        "counter",
        "offsets",
        "Offsets that the source had deleted before the worker fetched them.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_renumbered_partitions_total",
        "counter",
        "times",
        "Times a partition needed a new producer epoch, so that records may be in the target twice.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_renumbered_lanes_total",
        "counter",
        "times",
        "Former name of `millstream_mirror_renumbered_partitions_total`, for one release.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_failures_total",
        "counter",
        "failures",
        "Failed fetches, produces and recoveries.",
        SOURCE,
    ),
    Metric("millstream_mirror_commits_total", "counter", "commits", "Commits of progress.", SOURCE),
    Metric(
        "millstream_mirror_positions_total",
        "counter",
        "positions",
        "Positions of consumer groups copied to the target.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_groups",
        "gauge",
        "groups",
        "Consumer groups of the source whose positions are copied.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_lag_records",
        "gauge",
        "records",
        "Records not mirrored yet, of this worker's share.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_lag_seconds",
        "gauge",
        "seconds",
        "Seconds since a worker first saw the oldest record that the target does not have yet.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_throttled_seconds_total",
        "counter",
        "seconds",
        "Time that fetches waited for the source's limit in bytes a second.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_limit_bytes_per_second",
        "gauge",
        "bytes a second",
        "Limit of the source for all workers together; absent without one.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_topic_records_total",
        "counter",
        "records",
        f"Records written to the target{PER_TOPIC}.",
        TOPIC,
    ),
    Metric(
        "millstream_mirror_topic_bytes_total",
        "counter",
        "bytes",
        f"Bytes of record batches written to the target{PER_TOPIC}.",
        TOPIC,
    ),
    Metric(
        "millstream_mirror_topic_lag_records",
        "gauge",
        "records",
        f"Records not mirrored yet, of this worker's share{PER_TOPIC}.",
        TOPIC,
    ),
    Metric(
        "millstream_mirror_topic_lag_seconds",
        "gauge",
        "seconds",
        "Seconds since a worker first saw the oldest record that the target does not have yet, by its topic; of the"
        f" {MOST_TOPICS} topics that are furthest behind.",
        TOPIC,
    ),
    Metric(
        "millstream_mirror_diverged_records",
        "gauge",
        "records",
        "Records that only the target had when its topic was resynced with the source, and that are in TOPIC.set-aside;"
        f" from the worker that leads the group{PER_TOPIC}.",
        TOPIC,
    ),
    Metric(
        "millstream_mirror_set_aside_records",
        "gauge",
        "records",
        "Former name of `millstream_mirror_diverged_records`, for one release.",
        TOPIC,
    ),
    Metric(
        "millstream_mirror_target_reachable",
        "gauge",
        "0 or 1",
        "Whether the target is reachable.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_source_reachable", "gauge", "0 or 1", "Whether the source is reachable.", SOURCE
    ),
    Metric(
        "millstream_mirror_partitions",
        "gauge",
        "partitions",
        "Source partitions that this worker mirrors.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_waiting_partitions",
        "gauge",
        "partitions",
        f"Partitions of this worker that have not been mirrored for {LONG_S:.0f} seconds or longer, because a leader is"
        " missing or does not respond, or requests fail.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_promoted_topics",
        "gauge",
        "topics",
        "Topics of the target that are not mirrored any more, since they were promoted.",
        SOURCE,
    ),
    Metric(
        "millstream_loop_stall_seconds",
        "histogram",
        "seconds",
        "Time that callbacks waited for the event loop, if a millisecond or longer.",
    ),
)
"""Every metric of a mirror worker: docs/metrics.md is this table."""
FORMER_NAMES = {"renumbered_partitions": "renumbered_lanes"}
"""Names of counters in the release before, which stay for one release."""


def page(sources: Sequence[SourceStatus], stalls: Stalls) -> Page:
    """The page for Prometheus."""
    page = Page(TABLE)
    page.add("millstream_mirror_info", {(__version__,): 1})
    for name in (counter.name for counter in fields(Counters)):
        values = {(source.name,): getattr(source.counters, name) for source in sources}
        page.add(f"millstream_mirror_{name}_total", values)
        if name in FORMER_NAMES:
            page.add(f"millstream_mirror_{FORMER_NAMES[name]}_total", values)
    for name, gauges in (
        ("lag_records", {(source.name,): source.lag_records for source in sources}),
        ("lag_seconds", {(source.name,): round(source.lag_seconds, 3) for source in sources}),
        ("source_reachable", {(source.name,): source.reachable for source in sources}),
        ("groups", {(source.name,): source.groups or 0 for source in sources}),
        ("partitions", {(source.name,): source.tasks for source in sources}),
        ("waiting_partitions", {(source.name,): source.waiting for source in sources}),
        ("promoted_topics", {(source.name,): len(source.promoted) for source in sources}),
    ):
        page.add(f"millstream_mirror_{name}", gauges)
    limits = {(source.name,): source.limit for source in sources if source.limit is not None}
    page.add("millstream_mirror_limit_bytes_per_second", limits)
    reached = {(source.name,): bool(source.target.get("reachable")) for source in sources}
    page.add("millstream_mirror_target_reachable", reached)
    _add_topics(page, sources)
    page.add_histogram("millstream_loop_stall_seconds", {(): stalls.by_clock})
    return page


def _add_topics(page: Page, sources: Sequence[SourceStatus]) -> None:
    for name, field_name in (
        ("topic_records_total", "records"),
        ("topic_bytes_total", "bytes"),
        ("topic_lag_records", "lag_records"),
    ):
        values: dict[Labels, float] = {}
        for source in sources:
            found: dict[Labels, float] = {
                (topic,): getattr(status, field_name) for topic, status in source.by_topic.items()
            }
            values |= {(source.name, *topic): value for topic, value in bounded(found, MOST_TOPICS).items()}
        page.add(f"millstream_mirror_{name}", values)
    diverged: dict[Labels, float] = {}
    for source in sources:
        of_topics: dict[Labels, float] = {}
        for partition in source.diverged:
            of_topics[partition.topic,] = of_topics.get((partition.topic,), 0) + partition.records
        diverged |= {(source.name, *topic): value for topic, value in bounded(of_topics, MOST_TOPICS).items()}
    for name in ("diverged_records", "set_aside_records"):  # the second is the former name
        page.add(f"millstream_mirror_{name}", diverged)
    behind: dict[Labels, float] = {}
    for source in sources:
        latest = sorted(source.by_topic.items(), key=lambda item: (-item[1].lag_seconds, item[0]))
        behind |= {
            (source.name, topic): round(status.lag_seconds, 3) for topic, status in latest[:MOST_TOPICS]
        }
    page.add("millstream_mirror_topic_lag_seconds", behind)
