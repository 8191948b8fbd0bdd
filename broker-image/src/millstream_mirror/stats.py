"""Statistics of a source's mirroring: `/status` as JSON, `/metrics` for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from millstream_kafka import __version__
from millstream_process.loop import Stalls
from millstream_process.metrics import Metric, Page

from .lane import Lane
from .progress import Gap

SOURCE = ("source",)
GAPS = 10
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
    """Records that the target already had, and that were therefore not written again."""
    missing_records: int = 0
    """Offsets that the source no longer had when we reached them."""
    renumbered_lanes: int = 0
    """Times a lane continued under a new epoch, so that records may be in the target twice."""
    failures: int = 0
    commits: int = 0
    positions: int = 0
    """Positions of consumer groups committed in the target."""


@dataclass(slots=True)
class Reachability:
    """Whether a source responds; logs each change once."""

    name: str
    bootstrap: str
    reachable: bool = False
    error: str = ""

    def lost(self, error: Exception) -> None:
        if self.reachable or not self.error:
            logger.warning("source %s: %s", self.name, error)
        self.reachable, self.error = False, str(error)

    def found(self) -> None:
        if not self.reachable:
            logger.info("source %s: reached at %s", self.name, self.bootstrap)
        self.reachable, self.error = True, ""


@dataclass(frozen=True, slots=True)
class LaneGap:
    """Offsets that a partition lacks in the target, and whether its mirroring stopped there."""

    lane: str
    gap: Gap
    stopped: bool

    def as_json(self) -> dict[str, Any]:
        gap = self.gap
        return {"partition": self.lane, "from": gap.offset, "until": gap.next_offset, "stopped": self.stopped}


def gaps_of(lanes: Iterable[Lane], now_ms: int) -> list[LaneGap]:
    """Where lanes stopped, then what was passed in the last day, newest first; at most ``GAPS`` of them."""
    stopped = [LaneGap(str(lane), lane.stopped_at, True) for lane in lanes if lane.stopped_at]
    passed = [
        LaneGap(str(lane), lane.acknowledged.gap, False)
        for lane in lanes
        if lane.acknowledged.gap and now_ms - lane.acknowledged.gap.at_ms < GAP_SHOWN_MS
    ]
    passed.sort(key=lambda one: one.gap.at_ms, reverse=True)
    return [*stopped, *passed][:GAPS]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    name: str
    reachable: bool
    topics: Sequence[str]
    lanes: int
    lag_records: int
    lag_seconds: float
    last_error: str
    counters: Counters = field(default_factory=Counters)
    groups: int | None = None
    """Selected consumer groups; None if none are wanted."""
    gaps: Sequence[LaneGap] = ()
    replaced: Sequence[str] = ()
    """Topics that were deleted and created again in the source, and therefore wait."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reachable": self.reachable,
            "topics": len(self.topics),
            "topicNames": list(self.topics),
            "partitions": self.lanes,
            "lag": {"records": self.lag_records, "seconds": round(self.lag_seconds, 3)},
            "groups": self.groups,
            "gaps": [gap.as_json() for gap in self.gaps],
            "replaced": list(self.replaced),
            "lastError": self.last_error,
            "missingRecords": self.counters.missing_records,
        }


def status_json(sources: Sequence[SourceStatus], member: str) -> dict[str, Any]:
    """All sources together; topics are those of the target that this worker writes to."""
    return {
        "topics": len({topic for source in sources for topic in source.topics}),
        "lag": {
            "records": sum(source.lag_records for source in sources),
            "seconds": round(max((source.lag_seconds for source in sources), default=0.0), 3),
        },
        "sources": [source.as_json() for source in sources],
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
        "Batches that could not be forwarded as they were.",
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
        "Offsets that the source no longer had when the worker came to them.",
        SOURCE,
    ),
    Metric(
        "millstream_mirror_renumbered_lanes_total",
        "counter",
        "times",
        "Times a lane needed a new epoch, so that records may be in the target twice.",
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
        "Time since this worker had last caught up with the source.",
        SOURCE,
    ),
    Metric("millstream_mirror_source_reachable", "gauge", "0 or 1", "Whether the source answers.", SOURCE),
    Metric(
        "millstream_mirror_partitions",
        "gauge",
        "partitions",
        "Source partitions that this worker mirrors.",
        SOURCE,
    ),
    Metric(
        "millstream_loop_stall_seconds",
        "histogram",
        "seconds",
        "How long callbacks had to wait for the event loop, where it was a millisecond or longer.",
    ),
)
"""Every metric of a mirror worker: docs/metrics.md is this table."""


def page(sources: Sequence[SourceStatus], stalls: Stalls) -> Page:
    """The page for Prometheus."""
    page = Page(TABLE)
    page.add("millstream_mirror_info", {(__version__,): 1})
    for name in (one.name for one in fields(Counters)):
        values = {(one.name,): getattr(one.counters, name) for one in sources}
        page.add(f"millstream_mirror_{name}_total", values)
    for name, gauges in (
        ("lag_records", {(one.name,): one.lag_records for one in sources}),
        ("lag_seconds", {(one.name,): round(one.lag_seconds, 3) for one in sources}),
        ("source_reachable", {(one.name,): one.reachable for one in sources}),
        ("groups", {(one.name,): one.groups or 0 for one in sources}),
        ("partitions", {(one.name,): one.lanes for one in sources}),
    ):
        page.add(f"millstream_mirror_{name}", gauges)
    page.add_histogram("millstream_loop_stall_seconds", {(): stalls.by_clock})
    return page
