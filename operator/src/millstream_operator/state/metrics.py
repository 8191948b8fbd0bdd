"""The operator's metrics for Prometheus: metric_table.py lists them all.

Counters are incremented as work proceeds, from any thread. Metrics of resources (conditions, lags, runs) are read from
the store at each scrape, so a restart does not lose them. Series by object are bounded: those that need attention come
first, and another metric counts those left out.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily

from .. import __version__
from ..models import KINDS
from ..models.conditions import ConditionType, Reason
from ..models.keys import Key
from .cache import Store
from .lags import Lags, Measured
from .metric_table import BY_NAME, MOST_OBJECTS

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
OTHER = "Other"

UNEXPECTED = {
    ConditionType.READY: "True",
    ConditionType.SOURCE_REACHABLE: "True",
    ConditionType.DEGRADED: "False",
    ConditionType.LAGGING: "False",
    ConditionType.STUCK: "False",
    ConditionType.RESET: "True",
    ConditionType.WORKLOAD_READY: "True",
    ConditionType.WARNING: "False",
    ConditionType.STRAYS: "False",
    ConditionType.CERTIFICATES_READY: "True",
    ConditionType.SUCCEEDED: "True",
    ConditionType.LATE: "False",
    ConditionType.DATA_QUALITY: "True",
}
"""Conditions that need attention unless they have this status."""
PROGRESS = {
    Reason.NO_WORKERS,
    Reason.RUN_PENDING,
    Reason.RUNNING,
    Reason.SCHEDULED,
    Reason.SUSPENDED,
    Reason.WAITING_FOR_RECORDS,
}
"""Reasons of conditions that resolve themselves, or that a user has asked for."""


class _Condition(msgspec.Struct):
    type: str
    status: str = ""
    reason: str = ""


class _Run(msgspec.Struct, rename="camel"):
    state: str | None = None
    rows: int | None = None
    corrupt_records: int | None = None
    start_time: str | None = None
    end_time: str | None = None


class _Lag(msgspec.Struct):
    records: int | None = None
    seconds: int | None = None


class _Brokers(msgspec.Struct):
    desired: int | None = None
    ready: int | None = None


class _Status(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] | None = None
    last_run: _Run | None = None
    lag: _Lag | None = None
    brokers: _Brokers | None = None


class _Shown(msgspec.Struct):
    """The fields of a resource that appear in metrics."""

    status: _Status = msgspec.field(default_factory=_Status)


_DECODER = msgspec.json.Decoder(_Shown)
_CONDITIONS = frozenset(one.value for one in ConditionType)
_REASONS = frozenset(one.value for one in Reason)


class Metrics:
    """The metrics of one operator."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.lags = Lags()
        self.reconciles = self._counter("millstream_operator_reconciles_total")
        self.reconcile_seconds = self._histogram("millstream_operator_reconcile_seconds")
        self.errors = self._counter("millstream_operator_errors_total")
        self.queue_keys = self._gauge("millstream_operator_queue_keys")
        self.queue_due = self._gauge("millstream_operator_queue_due")
        self.queue_oldest_seconds = self._gauge("millstream_operator_queue_oldest_seconds")
        # The second of each is its former name.
        self.reconciles_running = [
            self._gauge(f"millstream_operator_{name}") for name in ("reconciles_running", "looks_running")
        ]
        self.longest_reconcile_seconds = [
            self._gauge(f"millstream_operator_longest_{name}_seconds") for name in ("reconcile", "look")
        ]
        self.api_requests = self._counter("millstream_operator_api_requests_total")
        self.api_request_seconds = self._histogram("millstream_operator_api_request_seconds")
        self.events = self._counter("millstream_operator_events_total")
        self.events_dropped = self._counter("millstream_operator_events_dropped_total")
        self.leading = self._gauge("millstream_operator_leading")
        self._gauge("millstream_operator_info").labels(__version__).set(1)
        ProcessCollector(registry=self.registry)

    def show(self, store: Store) -> None:
        """From now on include the resources in a store."""
        self.registry.register(_Resources(store, self.lags))

    def api_request(self, method: str, resource: str, code: int, seconds: float) -> None:
        """Count a finished request to the Kubernetes API; ``code`` is 0 if there was no response."""
        self.api_requests.labels(method, resource, str(code)).inc()
        self.api_request_seconds.labels(method).observe(seconds)

    def text(self) -> bytes:
        """Prometheus's text format. Takes milliseconds for each thousand resources: call it in a thread."""
        return generate_latest(self.registry)

    def _counter(self, name: str) -> Counter:
        metric = BY_NAME[name]
        return Counter(name, metric.text, metric.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        metric = BY_NAME[name]
        return Gauge(name, metric.text, metric.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        metric = BY_NAME[name]
        return Histogram(name, metric.text, metric.labels, registry=self.registry, buckets=SECONDS)


class _Resources:
    """A collector of the metrics of resources in the store."""

    def __init__(self, store: Store, lags: Lags) -> None:
        self._store = store
        self._lags = lags

    def collect(self) -> Iterator[GaugeMetricFamily]:
        shown = {key: _shown(raw) for key, raw in self._store.snapshot().items()}
        found = _Series()
        kinds = Counts(key.kind for key in shown)
        found.add("millstream_operator_resources", {(kind,): kinds[kind] for kind in KINDS})
        found.add("millstream_operator_conditions", _conditions(shown))
        attention = sorted(_attention(shown), key=lambda one: (one[0] != "Cluster", one))
        found.add("millstream_operator_attention", dict.fromkeys(attention, 1.0))
        found.add_clusters(shown)
        found.add_lags(shown, self._lags.all(), self._lags.clock())
        found.add_loads(shown)
        omitted = {(name,): float(count) for name, count in found.omitted.items()}
        found.add("millstream_operator_series_omitted", omitted)
        for name, values in found.values.items():
            metric = BY_NAME[name]
            family = GaugeMetricFamily(name, metric.text, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


@dataclass(slots=True)
class _Series:
    values: dict[str, Mapping[tuple[str, ...], float]] = field(default_factory=dict)
    omitted: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, values: Mapping[Any, float]) -> None:
        """Add series by label values. Of series by object only the first ones, up to the bound, are added."""
        labels = BY_NAME[name].labels
        if "name" in labels:
            self.omitted[name] = max(0, len(values) - MOST_OBJECTS)
            values = dict(list(values.items())[:MOST_OBJECTS])
        self.values[name] = values

    def add_clusters(self, shown: Mapping[Key, _Status]) -> None:
        counts = {
            (key.namespace, key.name): status.brokers
            for key, status in sorted(shown.items())
            if key.kind == "Cluster" and status.brokers is not None
        }
        self.add("millstream_cluster_brokers", {at: float(one.desired or 0) for at, one in counts.items()})
        self.add(
            "millstream_cluster_brokers_ready", {at: float(one.ready or 0) for at, one in counts.items()}
        )

    def add_lags(self, shown: Mapping[Key, _Status], measured: Mapping[Key, Measured], now: float) -> None:
        """Add the lags last measured; after a restart those in statuses, until each resource is reconciled."""
        for kind, name in (("ConsumerGroup", "group"), ("BatchLoad", "load")):
            lags = {
                (key.namespace, key.name): measured[key][:2]
                if key in measured
                else (status.lag.records or 0, status.lag.seconds or 0)
                for key, status in shown.items()
                if key.kind == kind and status.lag is not None
            }
            furthest = sorted(lags.items(), key=lambda one: (*(-lag for lag in one[1]), one[0]))
            self.add(f"millstream_{name}_lag_records", {at: float(records) for at, (records, _) in furthest})
            self.add(f"millstream_{name}_lag_seconds", {at: float(seconds) for at, (_, seconds) in furthest})
        ages = {
            (key.namespace, key.name): max(0.0, now - lag.at)
            for key, lag in sorted(measured.items(), key=lambda one: (one[1].at, one[0]))
            if key.kind == "ConsumerGroup" and key in shown
        }
        self.add("millstream_group_lag_age_seconds", ages)

    def add_loads(self, shown: Mapping[Key, _Status]) -> None:
        runs = {
            (key.namespace, key.name): status.last_run
            for key, status in sorted(shown.items())
            if key.kind == "BatchLoad" and status.last_run is not None
        }
        states = {(*at, run.state): 1.0 for at, run in runs.items() if run.state}
        self.add("millstream_load_run_state", states)
        self.add(
            "millstream_load_run_rows",
            {at: float(run.rows) for at, run in runs.items() if run.rows is not None},
        )
        ends = {at: _timestamp(run.end_time) for at, run in runs.items()}
        starts = {at: _timestamp(run.start_time) for at, run in runs.items()}
        self.add(
            "millstream_load_run_end_timestamp_seconds",
            {at: end for at, end in ends.items() if end is not None},
        )
        took = {}
        for at, end in ends.items():
            if end is not None and (start := starts[at]) is not None:
                took[at] = end - start
        self.add("millstream_load_run_seconds", took)
        corrupt = {at: run.corrupt_records for at, run in runs.items()}
        self.add(
            "millstream_load_run_corrupt_records",
            {at: float(count) for at, count in corrupt.items() if count is not None},
        )
        loads = {
            (key.namespace, key.name): one for key, one in sorted(shown.items()) if key.kind == "BatchLoad"
        }
        late = {
            at: condition.status == "True"
            for at, one in loads.items()
            for condition in one.conditions or ()
            if condition.type == ConditionType.LATE
        }
        self.add("millstream_load_late", {at: float(is_late) for at, is_late in late.items()})


def _shown(raw: bytes) -> _Status:
    """Decode a status; an empty one if somebody else has made it unreadable."""
    try:
        return _DECODER.decode(raw).status
    except msgspec.ValidationError:
        return _Status()


def _conditions(shown: Mapping[Key, _Status]) -> dict[tuple[str, ...], float]:
    return dict(
        Counts(
            (
                key.kind,
                condition.type,
                condition.status,
                condition.reason if condition.reason in _REASONS else OTHER,
            )
            for key, status in shown.items()
            for condition in status.conditions or ()
            if condition.type in _CONDITIONS and condition.status in ("True", "False", "Unknown")
        )
    )


def _attention(shown: Mapping[Key, _Status]) -> Iterable[tuple[str, ...]]:
    for key, status in shown.items():
        for condition in status.conditions or ():
            expected = UNEXPECTED.get(condition.type)  # type: ignore[call-overload]
            blocked = condition.reason == Reason.RESTART_BLOCKED
            if blocked or (expected not in (None, condition.status) and condition.reason not in PROGRESS):
                yield (*key, condition.type, condition.reason if condition.reason in _REASONS else OTHER)


def _timestamp(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
