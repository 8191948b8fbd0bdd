"""Metrics as tables: a `Metric` defines each one; a `Page` has their values, for Prometheus.

prometheus-client is imported at the first scrape, which saves 40 ms at every start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .histogram import Histogram

Labels = tuple[str, ...]
OTHERS = "(others)"
"""The label for the sum of the other series, if there are too many. No topic can have that name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table: the name as Prometheus shows it, without a histogram's suffixes."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    text: str
    labels: Labels = ()


PROCESS = (
    Metric("process_cpu_seconds_total", "counter", "seconds", "Processor time of the process."),
    Metric("process_max_fds", "gauge", "files", "Limit of open files."),
    Metric("process_open_fds", "gauge", "files", "Open files of the process."),
    Metric("process_resident_memory_bytes", "gauge", "bytes", "Resident memory of the process."),
    Metric("process_start_time_seconds", "gauge", "seconds since 1970", "When it started."),
    Metric("process_virtual_memory_bytes", "gauge", "bytes", "Virtual memory of the process."),
)
"""Metrics of any process, from prometheus-client; they are on every page."""


class Page:
    """Metrics of a table, with their values at the time they were added."""

    def __init__(self, table: tuple[Metric, ...]) -> None:
        self._by_name = {metric.name: metric for metric in table}
        self._found: list[tuple[Metric, list[tuple[Labels, Any]]]] = []

    def add(self, name: str, values: float | Mapping[Any, float]) -> None:
        """Add one value, or several by label values. Raises KeyError if the table lacks the metric."""
        several = values if isinstance(values, Mapping) else {(): values}
        self._found.append((self._by_name[name], list(several.items())))

    def add_histogram(self, name: str, of: Mapping[Labels, Histogram]) -> None:
        values = [(labels, (histogram.cumulative(), histogram.seconds)) for labels, histogram in of.items()]
        self._found.append((self._by_name[name], values))

    def collect(self) -> Iterator[Any]:
        """For Prometheus's registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        for metric, values in self._found:
            family = families[metric.kind](metric.name, metric.text, labels=metric.labels)
            for labels, value in values:
                family.add_metric(labels, *(value if metric.kind == "histogram" else (value,)))
            yield family

    def text(self) -> bytes:
        """The page in Prometheus's text format, with the process metrics. Slow: call it in a thread."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry)


def bounded(values: Mapping[Labels, float], most: int) -> dict[Labels, float]:
    """The first `most` values by name; the others are added up under OTHERS."""
    if len(values) <= most:
        return dict(values)
    by_name = sorted(values.items())
    kept = dict(by_name[: most - 1])
    width = len(by_name[0][0])
    return {**kept, (OTHERS,) * width: sum(value for _, value in by_name[most - 1 :])}
