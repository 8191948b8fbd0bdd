"""The report's figures, a PNG each, small enough that their text is readable on a phone."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator

from replicated import Survived
from traffic import Sample, Traffic

mpl.use("Agg")
INK, QUIET, GRID = "#1c2733", "#66727f", "#e6eaee"
BLUE, AMBER, TEAL, RED = "#2f6fde", "#e08a1e", "#12908a", "#c8372d"
SIZE = (4.8, 3.0)  # inches: at the width of a phone 10 points are still 10 pixels
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
THOUSANDS = FuncFormatter(lambda value, _: f"{value / 1000:,.0f}k" if abs(value) >= 1000 else f"{value:,.0f}")
SECONDS = FuncFormatter(lambda value, _: f"{value:g} s")


def flights(traffic: Traffic) -> bytes:
    def draw(axes: Any) -> None:
        hours = sorted(hour for hour, seen in traffic.hours.items() if seen.left)
        left = [traffic.hours[hour].left for hour in hours]
        cancelled = [traffic.hours[hour].flights - traffic.hours[hour].left for hour in hours]
        axes.bar(hours, left, width=0.78, color=BLUE, label="left")
        axes.bar(hours, cancelled, width=0.78, bottom=left, color=AMBER, label="cancelled")
        axes.yaxis.set_major_formatter(THOUSANDS)
        axes.set_ylim(top=max(map(sum, zip(left, cancelled, strict=True))) * 1.18)
        _legend(axes)
        _hours(axes, hours)

    return _png(draw)


def delays(traffic: Traffic) -> bytes:
    def draw(axes: Any) -> None:
        hours = sorted(hour for hour, seen in traffic.hours.items() if seen.left)
        means = [traffic.hours[hour].mean_delay for hour in hours]
        axes.axhline(0, color=QUIET, linewidth=0.8)
        axes.plot(hours, means, color=AMBER, linewidth=2.2, marker="o", markersize=4.5)
        axes.fill_between(hours, means, color=AMBER, alpha=0.12)
        worst = max(hours, key=lambda hour: traffic.hours[hour].mean_delay)
        height = traffic.hours[worst].mean_delay
        _note(axes, f"{height:.0f} minutes at {worst}:00", worst, height)
        axes.set_ylim(top=height * 1.25)
        _hours(axes, hours)

    return _png(draw)


def lag(traffic: Traffic) -> bytes:
    def draw(axes: Any) -> None:
        samples = _from_zero(traffic)
        records = [one.lag for one in samples]
        axes.plot([one.seconds for one in samples], records, color=TEAL, linewidth=2.2)
        axes.fill_between([one.seconds for one in samples], records, color=TEAL, alpha=0.12)
        axes.yaxis.set_major_formatter(THOUSANDS)
        axes.set_ylim(bottom=0, top=max(*records, 1) * 1.18)
        top = max(samples, key=lambda one: one.lag)
        _note(axes, f"{top.lag:,}", top.seconds, top.lag)
        _time(axes, traffic.consume_s + 1)

    return _png(draw)


def rates(traffic: Traffic) -> bytes:
    def draw(axes: Any) -> None:
        samples = _from_zero(traffic)
        seconds = [one.seconds for one in samples]
        published, consumed = rate(samples, "published"), rate(samples, "consumed")
        for values, color, name in ((published, BLUE, "published"), (consumed, TEAL, "consumed")):
            axes.plot(seconds, values, color=color, linewidth=2.2, label=name)
        _legend(axes)
        axes.yaxis.set_major_formatter(THOUSANDS)
        axes.set_ylim(bottom=0, top=max(*published, *consumed, 1) * 1.25)
        _time(axes, traffic.consume_s + 1)

    return _png(draw)


def failover(survived: Survived) -> bytes:
    def draw(axes: Any) -> None:
        seconds = [one.seconds for one in survived.samples]
        records = [one.records for one in survived.samples]
        words = f"{survived.silence_s:.1f} s without acknowledgement"
        axes.axvspan(*survived.silence, color=RED, alpha=0.14, linewidth=0, label=words)
        axes.plot(seconds, records, color=BLUE, linewidth=2.2)
        for when, color, words in (
            (survived.killed_s, RED, f"broker {survived.broker} killed"),
            (survived.restarted_s, TEAL, "ready again"),
        ):
            axes.axvline(when, color=color, linewidth=1.2, linestyle=(0, (4, 3)), label=words)
        # above the axes: events that are close would cover each other's labels
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, handlelength=1.4)
        axes.yaxis.set_major_formatter(THOUSANDS)
        axes.set_ylim(bottom=0, top=max(*records, 1) * 1.05)
        _time(axes, max(*seconds, survived.restarted_s) * 1.02)

    return _png(draw)


def rate(samples: list[Sample], what: str, window_s: float = 1.0) -> list[float]:
    """Records a second at every sample, over the second before it."""
    found, first = [], 0
    for last, sample in enumerate(samples):
        while sample.seconds - samples[first].seconds > window_s and first < last - 1:
            first += 1
        passed = sample.seconds - samples[first].seconds
        found.append((getattr(sample, what) - getattr(samples[first], what)) / passed if passed else 0.0)
    return found


def _from_zero(traffic: Traffic) -> list[Sample]:
    return [Sample(0, 0, 0, 0), *traffic.samples]


def _png(draw: Callable[[Any], None]) -> bytes:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=SIZE)
        draw(axes)
        content = io.BytesIO()
        figure.savefig(
            content, format="png", dpi=200, bbox_inches="tight", pad_inches=0.06, facecolor="white"
        )
        plt.close(figure)
        return content.getvalue()


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, loc="upper right", ncols=2, labelcolor="linecolor", handlelength=1.2)


def _note(axes: Any, words: str, x: float, y: float) -> None:
    axes.annotate(words, (x, y), (0, 8), textcoords="offset points", ha="center")


def _hours(axes: Any, hours: list[int]) -> None:
    axes.set_xticks(hours[::3], [f"{hour}:00" for hour in hours[::3]])


def _time(axes: Any, end: float) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(SECONDS)
    axes.set_xlim(0, end)
