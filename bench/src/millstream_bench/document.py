"""The tables of docs/performance.md, written between markers from a file of results.

<!-- bench:begin -->
…
<!-- bench:end -->
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream_bench.figures import Figure, median, number, scatter
from millstream_bench.peers import KAFKA, LABELS
from millstream_bench.results import Results
from millstream_bench.workload import Workload
from millstream_bench.workloads import WORKLOADS

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
HEADINGS = ("Workload", "Figure", "Millstream", "Apache Kafka", "Ratio", "Goal", "Met", "Scatter")
VERDICTS = {True: "yes", False: "no", None: ""}


def rows(workload: Workload, results: Results) -> list[tuple[str, ...]]:
    """A row for each measured figure."""
    found = []
    for figure in workload.figures:
        values = results.values(workload.name, figure.name)
        if values.get(workload.contenders[0]):
            found.append(_row(workload, figure, values))
    return found


def _row(workload: Workload, figure: Figure, values: dict[str, list[float]]) -> tuple[str, ...]:
    last = workload.other
    ours = median(values[workload.contenders[0]])
    theirs = median(values[last]) if last and values.get(last) else None
    other = "" if theirs is None else number(theirs)
    if last and last != KAFKA and other:
        other = f"{LABELS.get(last, last)}: {other}"
    return (
        workload.title,
        f"{figure.name}, {figure.unit}",
        number(ours),
        other,
        f"{ours / theirs:.2f}" if theirs and theirs > 0 else "",
        figure.goal,
        VERDICTS[figure.met(ours, theirs)],
        scatters(values[workload.contenders[0]], values.get(last, []) if last else []),
    )


def scatters(*sides: Sequence[float]) -> str:
    """How far each side's rounds are apart; empty if one round measured both."""
    found = [scatter(values) if values else None for values in sides]
    shown = ["–" if each is None else f"{each:.0%}" for each in found]
    return ", ".join(shown) if any(each is not None for each in found) else ""


def all_rows(results: Results) -> list[tuple[str, ...]]:
    """The rows of all workloads; only the first row of each has a title."""
    found, marked = [], marks(results)
    for workload in WORKLOADS:
        elsewhere = results.elsewhere.get(workload.name)
        mark = marked[described(elsewhere)] if elsewhere else ""
        for place, row in enumerate(rows(workload, results)):
            found.append((row[0] + mark if place == 0 else "", *row[1:]))
    return found


def table(results: Results) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---:|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in all_rows(results)]
    return "\n".join(lines)


def marks(results: Results) -> dict[str, str]:
    """Marks of the machines on which some rows were measured, by their description."""
    machines = dict.fromkeys(described(one) for one in results.elsewhere.values())
    return {one: "¹²³⁴⁵⁶⁷⁸⁹"[place] for place, one in enumerate(machines)}


def described(facts: Mapping[str, str]) -> str:
    return (
        f"{facts.get('processor', '?')}, {facts.get('memory', '?')}, {facts.get('kernel', '?')},"
        f" Python {facts.get('python', '?')}, {facts.get('java', '?')}"
        f"{', Apache Kafka ' + facts['kafka'] if 'kafka' in facts else ''}"
    )


def setting(results: Results) -> str:
    scale = "" if results.scale == 1 else f" at {results.scale:g} of the full size"
    rounds = "One round" if results.rounds == 1 else f"Medians of {results.rounds} rounds"
    others = "".join(f" {mark} Measured on {machine}." for machine, mark in marks(results).items())
    return f"{rounds}{scale} on {described(results.machine)}.{others}"


def update(text: str, results: Results, plots: Sequence[str] = ()) -> str:
    """The document with the part between the markers replaced; ValueError where one is missing."""
    written = [setting(results), table(results), *(f"![{plot}]({plot})" for plot in plots)]
    return put_between(text, BEGIN, END, "\n\n".join(written))


def put_between(text: str, begin: str, end: str, written: str) -> str:
    """The text with the part between two markers replaced; ValueError where one is missing."""
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the document has no {begin} … {end}")
    return f"{before}{begin}\n{written}\n{end}{after}"
