"""The table of docs/performance.md about one operator, from what `make operator-scale SCALE="… --out FILE"` wrote.

<!-- operator:begin -->
…
<!-- operator:end -->
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream_bench.document import described, put_between
from millstream_bench.figures import Figure, number
from millstream_harness.operator_scale_figures import Found, Size

BEGIN, END = "<!-- operator:begin -->", "<!-- operator:end -->"
CPU = Figure("CPU of the operator in steady state", "% of a core")
REQUESTS = Figure("requests to brokers in steady state", "a second")
OF_GROUPS = Figure("… of them for groups", "a second")
AGE = Figure("age of a group's lag in the metrics, at most", "s", value=10.0)
MEMORY = Figure("memory, at most", "MB", value=200.0)
GROUP_APIS = ("DescribeGroups", "FindCoordinator", "ListOffsets", "OffsetFetch")


class Measured(msgspec.Struct):
    """The file."""

    machine: dict[str, str]
    size: Size
    found: Found


def load(path: Path) -> Measured:
    return msgspec.json.decode(path.read_bytes(), type=Measured)


def table(measured: Measured) -> str:
    size, found = measured.size, measured.found
    partitions = size.topics * size.partitions
    brokers = size.brokers * size.replicas
    title = (
        f"{size.groups:,} ConsumerGroups over {partitions:,} partitions of {size.topics:,} Topics,"
        f" {brokers} brokers, {size.replicas} replicas"
    )
    for_groups = sum(found.broker_requests.get(api, 0.0) for api in GROUP_APIS)
    rows = (
        (CPU, 100 * found.steady_cpu),
        (REQUESTS, found.broker_requests_per_s),
        (OF_GROUPS, for_groups),
        (AGE, found.lag_age_s),
        (MEMORY, found.peak_bytes / 1e6),
    )
    lines = [f"| {title} | goal | measured |", "|---|---|---:|"]
    lines += [f"| {figure.name} | {figure.goal} | {number(value)} {figure.unit} |" for figure, value in rows]
    return "\n".join(lines)


def update(text: str, measured: Measured) -> str:
    """The document with the part between the markers replaced; ValueError where one is missing."""
    setting = f"One run of {measured.size.steady_s:.0f} s on {described(measured.machine)}."
    return put_between(text, BEGIN, END, f"{table(measured)}\n\n{setting}")
