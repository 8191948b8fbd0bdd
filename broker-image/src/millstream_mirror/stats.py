"""What a source's mirroring counts, and how it is shown: `/status` as JSON, `/metrics` for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Since the worker started."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    rebuilt_batches: int = 0
    repeated_records: int = 0
    """Records that the target had already, and which were therefore not written again."""
    missing_records: int = 0
    """Offsets that the source no longer had when we came to them."""
    renumbered_lanes: int = 0
    """Times a lane went on under a new epoch, so that records may be in the target twice."""
    failures: int = 0
    commits: int = 0


@dataclass(slots=True)
class Reachability:
    """Whether a source answers; says each change in the log once."""

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
class SourceStatus:
    name: str
    reachable: bool
    topics: Sequence[str]
    lanes: int
    lag_records: int
    lag_seconds: float
    last_error: str
    counters: Counters = field(default_factory=Counters)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reachable": self.reachable,
            "topics": len(self.topics),
            "topicNames": list(self.topics),
            "partitions": self.lanes,
            "lag": {"records": self.lag_records, "seconds": round(self.lag_seconds, 3)},
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


_METRICS = (
    ("records_total", "counter", "Records written to the target.", "records"),
    ("bytes_total", "counter", "Bytes of record batches written to the target.", "bytes"),
    ("batches_total", "counter", "Record batches written to the target.", "batches"),
    (
        "rebuilt_batches_total",
        "counter",
        "Batches that could not be forwarded as they were.",
        "rebuilt_batches",
    ),
    (
        "repeated_records_total",
        "counter",
        "Records found in the target and not sent again.",
        "repeated_records",
    ),
    ("missing_records_total", "counter", "Offsets the source no longer had.", "missing_records"),
    ("renumbered_lanes_total", "counter", "Times a lane needed a new epoch.", "renumbered_lanes"),
    ("failures_total", "counter", "Failed fetches, produces and recoveries.", "failures"),
    ("commits_total", "counter", "Commits of progress.", "commits"),
)


def exposition(sources: Sequence[SourceStatus]) -> str:
    """Prometheus' text format."""
    lines: list[str] = []
    for name, kind, text, attribute in _METRICS:
        lines += _metric(name, kind, text, ((one.name, getattr(one.counters, attribute)) for one in sources))
    lines += _metric(
        "lag_records", "gauge", "Records not yet mirrored.", ((one.name, one.lag_records) for one in sources)
    )
    lines += _metric(
        "lag_seconds",
        "gauge",
        "Seconds since the source was last caught up with.",
        ((one.name, round(one.lag_seconds, 3)) for one in sources),
    )
    lines += _metric(
        "source_reachable",
        "gauge",
        "1 if the source answers.",
        ((one.name, int(one.reachable)) for one in sources),
    )
    lines += _metric(
        "partitions",
        "gauge",
        "Source partitions that this worker mirrors.",
        ((one.name, one.lanes) for one in sources),
    )
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> list[str]:
    full = f"millstream_mirror_{name}"
    head = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    return head + [f'{full}{{source="{source}"}} {value}' for source, value in values]
