"""The operator's metrics as a table: ``TABLE`` lists them all; docs/metrics.md is written from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MOST_OBJECTS = 500
"""Largest number of series by object of one metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: the name as Prometheus shows it, without a histogram's endings."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    text: str
    labels: tuple[str, ...] = ()


OBJECT = ("kind", "namespace", "name")
TABLE = (
    Metric("millstream_operator_info", "gauge", "1", "The operator's version.", ("version",)),
    Metric(
        "millstream_operator_leading",
        "gauge",
        "0 or 1",
        "Whether this operator acts (not on standby); `lease` (NAMESPACE/NAME) names its release.",
        ("lease",),
    ),
    Metric(
        "millstream_operator_reconciles_total",
        "counter",
        "resources",
        "Reconciled resources; `result` is ok or error.",
        ("kind", "result"),
    ),
    Metric(
        "millstream_operator_reconcile_seconds",
        "histogram",
        "seconds",
        "Duration of a reconcile of one resource or a batch.",
        ("kind",),
    ),
    Metric(
        "millstream_operator_errors_total",
        "counter",
        "errors",
        "Reconciles that failed, by the error's class.",
        ("kind", "error"),
    ),
    Metric("millstream_operator_queue_keys", "gauge", "resources", "Resources with a scheduled reconcile."),
    Metric(
        "millstream_operator_queue_due",
        "gauge",
        "resources",
        "Resources whose reconcile is due and has not begun.",
    ),
    Metric(
        "millstream_operator_queue_oldest_seconds",
        "gauge",
        "seconds",
        "Time that the most overdue reconcile has waited.",
    ),
    Metric("millstream_operator_reconciles_running", "gauge", "reconciles", "Reconciles in progress."),
    Metric(
        "millstream_operator_looks_running",
        "gauge",
        "reconciles",
        "Former name of `millstream_operator_reconciles_running`, for one release.",
    ),
    Metric(
        "millstream_operator_longest_reconcile_seconds",
        "gauge",
        "seconds",
        "Duration so far of the longest reconcile in progress.",
    ),
    Metric(
        "millstream_operator_longest_look_seconds",
        "gauge",
        "seconds",
        "Former name of `millstream_operator_longest_reconcile_seconds`, for one release.",
    ),
    Metric(
        "millstream_operator_api_requests_total",
        "counter",
        "requests",
        "Requests to the Kubernetes API, without watches; `code` is the HTTP status, 0 for no answer.",
        ("method", "resource", "code"),
    ),
    Metric(
        "millstream_operator_api_request_seconds",
        "histogram",
        "seconds",
        "Time from a request to the Kubernetes API to its answer.",
        ("method",),
    ),
    Metric("millstream_operator_events_total", "counter", "Events", "Events written.", ("type", "reason")),
    Metric(
        "millstream_operator_events_dropped_total",
        "counter",
        "Events",
        "Events that were not written, because there were too many or Kubernetes refused them.",
    ),
    Metric("millstream_operator_resources", "gauge", "resources", "Custom resources known.", ("kind",)),
    Metric(
        "millstream_operator_conditions",
        "gauge",
        "resources",
        "Resources by condition.",
        ("kind", "type", "status", "reason"),
    ),
    Metric(
        "millstream_operator_attention",
        "gauge",
        "1",
        f"A resource whose condition needs attention; at most {MOST_OBJECTS}.",
        (*OBJECT, "type", "reason"),
    ),
    Metric(
        "millstream_operator_series_omitted",
        "gauge",
        "series",
        "Series by object left out of a metric, because there were too many.",
        ("metric",),
    ),
    Metric(
        "millstream_cluster_brokers",
        "gauge",
        "brokers",
        "Desired brokers of a Cluster.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_cluster_brokers_ready",
        "gauge",
        "brokers",
        "Brokers of a Cluster that are ready.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_group_lag_records",
        "gauge",
        "records",
        f"Records that a ConsumerGroup is behind; at most {MOST_OBJECTS}, the furthest behind.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_group_lag_seconds",
        "gauge",
        "seconds",
        "Age of the oldest record that a ConsumerGroup has not consumed.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_group_lag_age_seconds",
        "gauge",
        "seconds",
        f"Time since the lag of a ConsumerGroup was measured; at most {MOST_OBJECTS}, the oldest.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_run_state",
        "gauge",
        "1",
        "State of a BatchLoad's last run: Pending, Running, Succeeded or Failed.",
        ("namespace", "name", "state"),
    ),
    Metric(
        "millstream_load_run_rows",
        "gauge",
        "rows",
        "Rows that the last run published.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_run_seconds",
        "gauge",
        "seconds",
        "Duration of the last run.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_run_end_timestamp_seconds",
        "gauge",
        "seconds since 1970",
        "When the last run ended.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_run_corrupt_records",
        "gauge",
        "rows",
        "Rows of the last run whose value could not be parsed completely.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_lag_records",
        "gauge",
        "records",
        "Records that a BatchLoad has not loaded, as of the last reconcile.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_lag_seconds",
        "gauge",
        "seconds",
        "Age of the oldest record that a BatchLoad has not loaded.",
        ("namespace", "name"),
    ),
    Metric(
        "millstream_load_late",
        "gauge",
        "0 or 1",
        "Whether a BatchLoad with a schedule is late: a run failed, was skipped, or has not begun.",
        ("namespace", "name"),
    ),
)
BY_NAME = {metric.name: metric for metric in TABLE}
PROCESS = (
    Metric("process_cpu_seconds_total", "counter", "seconds", "Processor time of the process."),
    Metric("process_max_fds", "gauge", "files", "Limit of open files."),
    Metric("process_open_fds", "gauge", "files", "Open files of the process."),
    Metric("process_resident_memory_bytes", "gauge", "bytes", "Resident memory of the process."),
    Metric("process_start_time_seconds", "gauge", "seconds since 1970", "When it started."),
    Metric("process_virtual_memory_bytes", "gauge", "bytes", "Virtual memory of the process."),
)
"""Metrics of any process, from prometheus-client."""
