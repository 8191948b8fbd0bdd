"""What the broker counts, and how Prometheus gets it.

The hot path only adds to plain attributes. When Prometheus asks, the loop takes what there is to tell, in slices, and a
thread makes the text of it. A scrape looks at each partition once; those that come or go
meanwhile are in the next one. prometheus-client is imported at the first scrape, which spares every start its 40 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

from millstream_process import supervision
from millstream_process.histogram import Histogram
from millstream_process.loop import Stalls

from .controllership import Controllership
from .groups.driver import GroupDriver
from .log.manager import LogManager
from .replication.follower import Follower
from .replication.partition import Partition
from .replication.replicas import Replicas
from .slices import finish, turns
from .stats import Stats


class Page:
    """Metrics, as they were when they were added."""

    def __init__(self) -> None:
        self._metrics: list[tuple[str, str, str, tuple[str, ...], list[tuple[tuple[str, ...], Any]]]] = []

    def add(
        self,
        kind: str,
        name: str,
        text: str,
        values: float | Mapping[tuple[str, ...], float],
        labels: tuple[str, ...] = (),
    ) -> None:
        """`kind`: gauge or counter; `values`: one, or several by the values of the labels."""
        self._metrics.append(
            (
                kind,
                name,
                text,
                labels,
                list(values.items()) if isinstance(values, Mapping) else [((), values)],
            )
        )

    def add_histogram(
        self,
        name: str,
        text: str,
        of: Mapping[tuple[str, ...], Histogram],
        labels: tuple[str, ...] = (),
    ) -> None:
        values = [(of_labels, (one.cumulative(), one.seconds)) for of_labels, one in of.items()]
        self._metrics.append(("histogram", name, text, labels, values))

    def collect(self) -> Iterator[Any]:
        """For Prometheus's registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for kind, name, text, labels, values in self._metrics:
            if kind == "histogram":
                histogram = HistogramMetricFamily(f"millstream_{name}", text, labels=labels)
                for of_labels, (buckets, seconds) in values:
                    histogram.add_metric(of_labels, buckets, seconds)
                yield histogram
            else:
                plain = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                family = plain(f"millstream_{name}", text, labels=labels)
                for of_labels, value in values:
                    family.add_metric(of_labels, value)
                yield family

    def text(self) -> bytes:
        """In Prometheus's text format, with what it tells of any process. Takes long: belongs in a thread."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry)


@dataclass
class _Tally:
    """What the replicas of this broker come to, one by one."""

    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    max_lag: int = 0
    uncleanable: int = 0
    offline: int = 0
    sizes: dict[tuple[str, ...], int] = field(default_factory=dict)
    ends: dict[tuple[str, ...], int] = field(default_factory=dict)

    def add(self, one: Partition | Follower) -> None:
        log = one.log
        topic = (one.topic,)
        self.sizes[topic] = self.sizes.get(topic, 0) + log.size
        self.ends[one.topic, str(one.index)] = log.log_end_offset
        self.uncleanable += log.uncleanable
        self.offline += log.offline is not None
        if isinstance(one, Partition):
            in_sync = len(one.record.isr)
            self.led += 1
            self.under_replicated += in_sync < len(one.record.replicas)
            self.under_min_isr += in_sync < one.min_insync_replicas
            if one.isr is not None:
                self.max_lag = max(self.max_lag, one.isr.max_lag())


class Metrics:
    """Of one broker."""

    def __init__(
        self,
        stats: Stats,
        stalls: Stalls,
        connections: Sized,
        replicas: Replicas,
        logs: LogManager,
        groups: GroupDriver,
        controllership: Controllership,
    ) -> None:
        self._stats = stats
        self._stalls = stalls
        self._connections = connections
        self._replicas = replicas
        self._logs = logs
        self._groups = groups
        self._controllership = controllership

    async def text(self) -> bytes:
        """Everything, in Prometheus's text format; the process's own metrics too."""
        page, found = Page(), _Tally()
        async for one in turns(list(self._replicas.all())):
            found.add(one)
        found.offline += len(self._replicas.unopened)
        controller = self._controllership.controller
        leadership = (0, 0) if controller is None else await finish(controller.machine.count())
        self._add_counters(page)
        self._add_gauges(page, found, *leadership)
        return await asyncio.to_thread(page.text)

    def _add_counters(self, page: Page) -> None:
        stats, stalls = self._stats, self._stalls
        page.add_histogram(
            "request_seconds",
            "Time from a request's last byte to its answer.",
            {(name,): of for name, of in stats.apis.items()},
            ("api",),
        )
        page.add_histogram(
            "loop_stall_seconds",
            "How long callbacks had to wait for the event loop, where it was a millisecond or longer.",
            {(): stalls.by_clock},
        )
        page.add_histogram(
            "loop_stall_cpu_seconds",
            "The same in the processor's time: without what other processes took.",
            {(): stalls.by_processor},
        )
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
                self._groups.unreadable,
            ),
        ):
            page.add("counter", name, text, value)
        page.add(
            "counter",
            "task_failures",
            "Background tasks that ended unexpectedly.",
            {(name,): count for name, count in supervision.failures.items()},
            ("task",),
        )

    def _add_gauges(self, page: Page, found: _Tally, leaderless: int, not_preferred: int) -> None:
        replicas, controller = self._replicas, self._controllership.controller
        for name, text, value in (
            ("connections", "Connections that are open.", len(self._connections)),
            ("topics", "Topics in the cluster.", len(replicas.metadata.topics)),
            ("partitions", "Partitions on this broker.", len(replicas.partitions) + len(replicas.followers)),
            ("leaders", "Partitions that this broker leads.", found.led),
            (
                "under_replicated_partitions",
                "Partitions led here with fewer replicas in sync than there are.",
                found.under_replicated,
            ),
            (
                "under_min_isr_partitions",
                "Partitions led here with fewer replicas in sync than min.insync.replicas.",
                found.under_min_isr,
            ),
            (
                "replica_max_lag",
                "Records that the follower furthest behind a leader here still has to fetch.",
                found.max_lag,
            ),
            ("active_controller", "1 where this broker is the controller.", controller is not None),
            (
                "leaderless_partitions",
                "Partitions of the cluster without a leader (controller only).",
                leaderless,
            ),
            (
                "not_preferred_leaders",
                "Partitions of the cluster not led by their preferred replica (controller only).",
                not_preferred,
            ),
            (
                "group_partitions_loading",
                "Partitions of __consumer_offsets led here whose groups are not loaded yet.",
                self._groups.loading,
            ),
            (
                "uncleanable_partitions",
                "Partitions that are not compacted any more, because compaction failed on them.",
                found.uncleanable,
            ),
            ("offline_log_directories", "Log directories that cannot be used.", len(self._logs.offline)),
            ("offline_partitions", "Partitions whose log cannot be used.", found.offline),
        ):
            page.add("gauge", name, text, value)
        page.add("gauge", "log_bytes", "Size of a topic's logs here.", found.sizes, ("topic",))
        page.add(
            "gauge", "log_end_offset", "The next offset of a partition.", found.ends, ("topic", "partition")
        )
