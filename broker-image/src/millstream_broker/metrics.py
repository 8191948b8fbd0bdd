"""What the broker counts, and how Prometheus gets it.

The hot path only adds to plain attributes; what Prometheus reads is made from them when it asks. prometheus-client
is imported at the first scrape, which spares every start its 40 ms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import supervision

if TYPE_CHECKING:
    from .broker import Broker

BOUNDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the latency buckets, in seconds."""


class ApiStats:
    """Requests of one API, and how long they took from being received to being answered."""

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BOUNDS) + 1)

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1


class Stats:
    """The broker's counters."""

    __slots__ = (
        "apis",
        "bytes_in",
        "bytes_out",
        "connections_accepted",
        "isr_expands",
        "isr_shrinks",
        "records_in",
        "records_refused",
    )

    def __init__(self) -> None:
        self.apis: dict[str, ApiStats] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_accepted = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.records_in = 0
        self.records_refused = 0

    def api(self, name: str) -> ApiStats:
        return self.apis.setdefault(name, ApiStats())


class BrokerCollector:
    """Makes Prometheus's metric families from a broker's counters and state."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        broker, stats, replicas = self._broker, self._broker.stats, self._broker.replicas
        led, controller = list(replicas.partitions.values()), broker.controller
        requests = HistogramMetricFamily(
            "millstream_request_seconds", "Time from a request's last byte to its answer.", labels=["api"]
        )
        for name, api in stats.apis.items():
            total, buckets = 0, []
            for bound, count in zip((*BOUNDS, "+Inf"), api.buckets, strict=True):
                total += count
                buckets.append((str(bound), total))
            requests.add_metric([name], buckets, api.seconds)
        yield requests
        for name, text, value in (
            ("received_bytes", "Bytes received from clients.", stats.bytes_in),
            ("sent_bytes", "Bytes sent to clients.", stats.bytes_out),
            ("connections_accepted", "Connections accepted since the start.", stats.connections_accepted),
            ("records_received", "Records appended to logs.", stats.records_in),
            ("batches_refused", "Produce requests' partitions that were refused.", stats.records_refused),
            ("isr_shrinks", "Followers that left the ISR of a partition led here.", stats.isr_shrinks),
            ("isr_expands", "Followers that joined it.", stats.isr_expands),
            (
                "group_records_unreadable",
                "Records of __consumer_offsets that were skipped when groups were loaded.",
                broker.groups.unreadable,
            ),
        ):
            yield CounterMetricFamily(f"millstream_{name}", text, value=value)
        failures = CounterMetricFamily(
            "millstream_task_failures", "Background tasks that ended unexpectedly.", labels=["task"]
        )
        for name, value in supervision.failures.items():
            failures.add_metric([name], value)
        yield failures
        for name, text, value in (
            ("connections", "Connections that are open.", len(broker.server.connections)),
            ("topics", "Topics in the cluster.", len(broker.metadata.topics)),
            ("partitions", "Partitions on this broker.", len(replicas.partitions) + len(replicas.followers)),
            ("leaders", "Partitions that this broker leads.", len(replicas.partitions)),
            (
                "under_replicated_partitions",
                "Partitions led here with fewer replicas in sync than there are.",
                sum(len(one.record.isr) < len(one.record.replicas) for one in led),
            ),
            (
                "under_min_isr_partitions",
                "Partitions led here with fewer replicas in sync than min.insync.replicas.",
                sum(len(one.record.isr) < one.min_insync_replicas for one in led),
            ),
            (
                "replica_max_lag",
                "Records that the follower furthest behind a leader here still has to fetch.",
                max((one.isr.max_lag() for one in led if one.isr is not None), default=0),
            ),
            ("active_controller", "1 where this broker is the controller.", controller is not None),
            (
                "leaderless_partitions",
                "Partitions of the cluster that nobody leads, where this broker is the controller.",
                0 if controller is None else controller.machine.leaderless(),
            ),
            (
                "not_preferred_leaders",
                "Partitions of the cluster that another than the preferred replica leads, likewise.",
                0 if controller is None else controller.machine.not_preferred(),
            ),
            (
                "group_partitions_loading",
                "Partitions of __consumer_offsets led here whose groups are not loaded yet.",
                broker.groups.loading,
            ),
            (
                "uncleanable_partitions",
                "Partitions that are not compacted any more, because compaction failed on them.",
                sum(one.uncleanable for one in broker.logs),
            ),
            ("offline_log_directories", "Log directories that cannot be used.", len(broker.logs.offline)),
            ("offline_partitions", "Partitions whose log cannot be used.", broker.replicas.offline_count()),
        ):
            yield GaugeMetricFamily(f"millstream_{name}", text, value=value)
        sizes = GaugeMetricFamily("millstream_log_bytes", "Size of a topic's logs here.", labels=["topic"])
        ends = GaugeMetricFamily(
            "millstream_log_end_offset", "The next offset of a partition.", labels=["topic", "partition"]
        )
        by_topic: dict[str, int] = {}
        for partition in replicas.all():
            by_topic[partition.topic] = by_topic.get(partition.topic, 0) + partition.log.size
            ends.add_metric([partition.topic, str(partition.index)], partition.log.log_end_offset)
        for topic, size in by_topic.items():
            sizes.add_metric([topic], size)
        yield sizes
        yield ends


def exposition(broker: Broker) -> bytes:
    """Everything, in Prometheus's text format; the process's own metrics too."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
