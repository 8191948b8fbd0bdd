"""Plots of the results: rates, broker CPU, memory and times beside Apache Kafka, and latencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.figure import Figure as Canvas

from millstream_bench.figures import Figure, median, number
from millstream_bench.results import Results
from millstream_bench.workload import Workload
from millstream_bench.workloads import WORKLOADS

COLOURS = {"millstream": "#1f6f8b", "kafka": "#b0a597"}
LABELS = {"millstream": "Millstream", "kafka": "Apache Kafka 4.1.1"}
LATENCIES = ("p50", "p99", "p99.9")

matplotlib.use("Agg")


def draw(results: Results, folder: Path) -> list[Path]:
    """Write every plot that there are results for; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        bars(
            results,
            "rate",
            "records a second: more is better (each pair on its own scale)",
            folder / "rates.png",
        ),
        bars(
            results,
            "broker CPU",
            "broker CPU seconds: less is better (each pair on its own scale)",
            folder / "cpu.png",
        ),
        bars(
            results,
            "memory",
            "resident memory in MB: less is better (each pair on its own scale)",
            folder / "memory.png",
        ),
        bars(
            results,
            "time",
            "seconds until it serves again: less is better (each pair on its own scale)",
            folder / "times.png",
        ),
        latencies(results, folder / "latency.png"),
    ]
    return [path for path in drawn if path is not None]


def compared(results: Results, name: str) -> list[tuple[Workload, Figure]]:
    """Workloads in which both brokers have that figure."""
    return [
        (workload, figure)
        for workload in WORKLOADS
        for figure in workload.figures
        if figure.name == name and set(COLOURS) <= set(results.values(workload.name, name))
    ]


def bars(results: Results, name: str, title: str, path: Path) -> Path | None:
    """A pair of bars a workload, in shares of the larger of the two, each labelled with its median."""
    pairs = compared(results, name)
    if not pairs:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.62 * len(pairs)), layout="constrained")
    for place, (workload, _) in enumerate(reversed(pairs)):
        values = {peer: median(results.values(workload.name, name)[peer]) for peer in COLOURS}
        largest = max(*values.values(), 1e-9)
        for offset, peer in ((0.19, "millstream"), (-0.19, "kafka")):
            label = LABELS[peer] if place == 0 else None
            share = values[peer] / largest
            axes.barh(place + offset, share, height=0.34, color=COLOURS[peer], label=label)
            axes.text(share + 0.01, place + offset, number(values[peer]), va="center", fontsize=8)
    axes.set_yticks(range(len(pairs)), [workload.title for workload, _ in reversed(pairs)], fontsize=8)
    axes.set_xlim(0, 1.14)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(title, fontsize=10, loc="left")
    figure.legend(loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    return _save(figure, path)


def latencies(results: Results, path: Path) -> Path | None:
    """Acknowledgement latency by rate: a panel a rate, percentiles across, logarithmic."""
    measured = [
        one for one in WORKLOADS if one.name.startswith("latency-") and results.values(one.name, "p50")
    ]
    if not measured:
        return None
    figure, panels = plt.subplots(
        1, len(measured), figsize=(9, 3), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, workload in zip(panels[0], measured, strict=True):
        for offset, peer in ((-0.19, "millstream"), (0.19, "kafka")):
            heights = _medians(results, workload.name, peer)
            places = [place + offset for place in range(len(heights))]
            panel.bar(places, heights, width=0.36, color=COLOURS[peer], label=LABELS[peer])
        panel.set_xticks(range(len(LATENCIES)), LATENCIES)
        panel.set_yscale("log")
        panel.set_title(workload.title.split(", ", 1)[1].replace(", acks=1", ""), fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("ms until acknowledged")
    figure.legend(
        *panels[0][0].get_legend_handles_labels(),
        loc="outside lower right",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return _save(figure, path)


def _medians(results: Results, workload: str, peer: str) -> Sequence[float]:
    values = (results.values(workload, name).get(peer) for name in LATENCIES)
    return [median(one) for one in values if one]


def _save(figure: Canvas, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
