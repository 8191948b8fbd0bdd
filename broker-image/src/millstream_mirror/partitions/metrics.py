"""`/metrics` for Prometheus: every metric of a mirror worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from millstream_kafka import __version__
from millstream_process.loop import Stalls
from millstream_process.metrics import Labels, Metric, Page, bounded

from .stats import Counters, SourceStatus
from .waiting import LONG_S

SOURCE = ("source",)
TOPIC = ("source", "topic")
MOST_TOPICS = 1000
"""Limit of a source's topics in one metric."""
PER_TOPIC = f", by topic of the target; beyond {MOST_TOPICS} topics the rest counts as (others)"

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
