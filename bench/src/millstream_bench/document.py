"""The tables of docs/performance.md, written between markers from a file of results.

<!-- bench:begin -->
…
<!-- bench:end -->
"""

from __future__ import annotations

from millstream_bench.figures import Figure, median, number
from millstream_bench.results import Results
from millstream_bench.workload import Workload
from millstream_bench.workloads import WORKLOADS

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
HEADINGS = ("Workload", "Figure", "Millstream", "Apache Kafka 4.1.1", "Ratio", "Goal", "Met")
VERDICTS = {True: "yes", False: "no", None: ""}


def rows(workload: Workload, results: Results) -> list[tuple[str, ...]]:
    """A row for each figure that was measured."""
    found = []
    for figure in workload.figures:
        values = results.values(workload.name, figure.name)
        if values.get(workload.contenders[0]):
            found.append(_row(workload, figure, values))
    return found


def _row(workload: Workload, figure: Figure, values: dict[str, list[float]]) -> tuple[str, ...]:
    first, last = workload.contenders[0], workload.contenders[-1]
    ours = median(values[first])
    theirs = median(values[last]) if values.get(last) else None
    other = "" if theirs is None else number(theirs)
    if last != "kafka" and other:
        other = f"{last}: {other}"
    return (
        workload.title,
        f"{figure.name}, {figure.unit}",
        number(ours),
        other,
        f"{ours / theirs:.2f}" if theirs else "",
        figure.goal,
        VERDICTS[figure.met(ours, theirs)],
    )


def table(results: Results) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---:|---|---|"]
    for workload in WORKLOADS:
        title = ""
        for row in rows(workload, results):
            lines.append(f"| {' | '.join(('' if row[0] == title else row[0], *row[1:]))} |")
            title = row[0]
    return "\n".join(lines)


def setting(results: Results) -> str:
    facts = results.machine
    return (
        f"Medians of {results.rounds} rounds on {facts.get('processor', '?')}, {facts.get('memory', '?')}, "
        f"{facts.get('kernel', '?')}, Python {facts.get('python', '?')}, {facts.get('java', '?')}."
    )


def update(text: str, results: Results) -> str:
    """The document with what stands between the markers replaced; ValueError where one is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{setting(results)}\n\n{table(results)}\n{END}{after}"
