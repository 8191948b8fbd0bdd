"""Plots of the results: rates, broker CPU, memory and times beside Apache Kafka, latencies, and mirrors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from millstream_bench.figures import median, number
from millstream_bench.peers import KAFKA, LABELS, MILLSTREAM, MIRRORMAKER2
from millstream_bench.results import Results
from millstream_bench.workloads import WORKLOADS

COLOURS = {MILLSTREAM: "#1f6f8b", KAFKA: "#b0a597", MIRRORMAKER2: "#c98a4b"}
Pair = tuple[str, float, float]
"""A label, and the medians of ours and theirs."""
LATENCIES = ("p50", "p99", "p99.9")

matplotlib.use("Agg")


def draw(results: Results, folder: Path) -> list[Path]:
    """Write every plot with results; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {
        "rates": ("rate", "records a second: more is better"),
        "cpu": ("broker CPU", "broker CPU seconds: less is better"),
        "memory": ("memory", "resident memory in MB: less is better"),
        "times": ("time", "seconds until it serves again: less is better"),
    }
    drawn = [
        bars(compared(results, name), KAFKA, title, folder / f"{file}.png")
        for file, (name, title) in titles.items()
    ]
    drawn.append(latencies(results, folder / "latency.png"))
    drawn.append(bars_of_mirrors(results, folder / "mirror.png"))
    return [path for path in drawn if path is not None]


def compared(results: Results, name: str) -> list[Pair]:
    """Workloads in which both brokers have that figure."""
    return [
        (workload.title, median(values[MILLSTREAM]), median(values[KAFKA]))
        for workload in WORKLOADS
        if {MILLSTREAM, KAFKA} <= set(values := results.values(workload.name, name))
    ]


def mirrors(results: Results) -> dict[str, list[Pair]]:
    """The figures of each workload in which mirrors are compared, by the end of its title."""
    found: dict[str, list[Pair]] = {}
    for workload in WORKLOADS:
        for figure in workload.figures:
            values = results.values(workload.name, figure.name)
            if {MILLSTREAM, MIRRORMAKER2} <= set(values):
                pair = (
                    f"{figure.name}, {figure.unit}",
                    median(values[MILLSTREAM]),
                    median(values[MIRRORMAKER2]),
                )
                found.setdefault(workload.title.partition("synced, ")[2], []).append(pair)
    return found


def bars_of_mirrors(results: Results, path: Path) -> Path | None:
    """A panel for each of these workloads."""
    panels = mirrors(results)
    if not panels:
        return None
    most = max(map(len, panels.values()))
    figure, axes = plt.subplots(
        len(panels), figsize=(9, (0.8 + 0.62 * most) * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, (title, pairs) in zip(axes.flat, panels.items(), strict=True):
        draw_bars(axis, pairs, MIRRORMAKER2, f"mirrors, {title}")
    return _with_legend(figure, axes[0][0], path)


def bars(pairs: Sequence[Pair], other: str, title: str, path: Path) -> Path | None:
    """A panel of pairs."""
    if not pairs:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.62 * len(pairs)), layout="constrained")
    draw_bars(axes, pairs, other, title)
    return _with_legend(figure, axes, path)


def draw_bars(axes: Axes, pairs: Sequence[Pair], other: str, title: str) -> None:
    """Pairs of bars, in shares of the larger of the two, each labelled with its median."""
    for place, (_, *values) in enumerate(reversed(pairs)):
        largest = max(*values, 1e-9)
        for offset, peer, value in zip((0.19, -0.19), (MILLSTREAM, other), values, strict=True):
            label = LABELS[peer] if place == 0 else None
            axes.barh(place + offset, value / largest, height=0.34, color=COLOURS[peer], label=label)
            axes.text(value / largest + 0.01, place + offset, number(value), va="center", fontsize=8)
    axes.set_yticks(range(len(pairs)), [label for label, *_ in reversed(pairs)], fontsize=8)
    axes.set_xlim(0, 1.14)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(f"{title} (each pair on its own scale)", fontsize=10, loc="left")


def _with_legend(figure: Canvas, axes: Axes, path: Path) -> Path:
    """Write it, with the legend of one of its panels."""
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


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
    return _with_legend(figure, panels[0][0], path)


def _medians(results: Results, workload: str, peer: str) -> Sequence[float]:
    values = (results.values(workload, name).get(peer) for name in LATENCIES)
    return [median(one) for one in values if one]
