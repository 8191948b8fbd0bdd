"""Writes docs/metrics.md: every metric, from the tables that the programs themselves use.

make docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from millstream_broker.observability.metric_table import TABLE as BROKER
from millstream_mirror.partitions.metrics import TABLE as MIRROR
from millstream_operator.state.metric_table import PROCESS as OPERATOR_PROCESS
from millstream_operator.state.metric_table import TABLE as OPERATOR
from millstream_operator.state.metric_table import Metric as OperatorMetric
from millstream_process.metrics import PROCESS, Metric

HEAD = """# Metrics

Written by `make docs/metrics.md` from the tables that the programs themselves use; a test holds it to them, and another
one to what they serve. How to collect, show and alert on them: [observability.md](observability.md).

Brokers and mirror workers serve `/metrics` on `http.listener` and `http` (port 9404 in Kubernetes), the operator on
`--metrics` (port 8081). The chart's monitors add `namespace` and `pod` to all, `cluster` to those of brokers and
`mirror` to those of mirror workers. In the operator's metrics `namespace` and `name` are those of the resource. A
histogram has the endings `_bucket`, `_sum` and `_count`. A counter begins at 0 with its process.
"""
PARTS: tuple[tuple[str, Iterable[Metric | OperatorMetric]], ...] = (
    ("Brokers", (*BROKER, *PROCESS)),
    ("Mirror workers", (*MIRROR, *PROCESS)),
    ("Operator, and loads", (*OPERATOR, *OPERATOR_PROCESS)),
)


def page() -> str:
    """The whole of docs/metrics.md."""
    lines = [HEAD]
    for title, metrics in PARTS:
        lines += [f"## {title}", "", "| metric | type | unit | labels | meaning |", "|---|---|---|---|---|"]
        for one in metrics:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.text} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
