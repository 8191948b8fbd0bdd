"""Metrics as tables: each is defined once, by a `Metric`; a `Page` of them with their values is what Prometheus gets.

prometheus-client is imported at the first scrape, which spares every start its 40 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .histogram import Histogram

Labels = tuple[str, ...]
OTHERS = "(others)"
"""The label of what is added up, because there is too much of it. No topic can have that name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table: the name as Prometheus shows it, without a histogram's endings."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    text: str
    labels: Labels = ()


PROCESS = (
    Metric("process_cpu_seconds_total", "counter", "seconds", "Processor time of the process."),
    Metric("process_max_fds", "gauge", "files", "Files that the process may have open."),
    Metric("process_open_fds", "gauge", "files", "Files that it has open."),
    Metric("process_resident_memory_bytes", "gauge", "bytes", "Memory that it takes."),
    Metric("process_start_time_seconds", "gauge", "seconds since 1970", "When it started."),
    Metric("process_virtual_memory_bytes", "gauge", "bytes", "Addresses that it has mapped."),
)
"""What prometheus-client says of any process; it is on every page."""


class Page:
    """Metrics of a table, as they were when they were added."""

    def __init__(self, table: tuple[Metric, ...]) -> None:
        self._by_name = {metric.name: metric for metric in table}
        self._found: list[tuple[Metric, list[tuple[Labels, Any]]]] = []

    def add(self, name: str, values: float | Mapping[Any, float]) -> None:
        """One value, or several by the values of the labels. KeyError: the table does not have it."""
        several = values if isinstance(values, Mapping) else {(): values}
        self._found.append((self._by_name[name], list(several.items())))

    def add_histogram(self, name: str, of: Mapping[Labels, Histogram]) -> None:
        values = [(labels, (one.cumulative(), one.seconds)) for labels, one in of.items()]
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
        """In Prometheus's text format, with what it tells of any process. Takes long: belongs in a thread."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry)


def bounded(values: Mapping[Labels, float], most: int) -> dict[Labels, float]:
    """So many of them, the first by name; the others are added up under OTHERS."""
    if len(values) <= most:
        return dict(values)
    by_name = sorted(values.items())
    kept = dict(by_name[: most - 1])
    width = len(by_name[0][0])
    return {**kept, (OTHERS,) * width: sum(value for _, value in by_name[most - 1 :])}
