"""Draws a Grafana dashboard's panels with matplotlib, from the dashboard's JSON and a Prometheus.

It is no screenshot: places, titles, queries, legends and units are the dashboard's own, the looks are not Grafana's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, MinuteLocator
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

mpl.use("Agg")

Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]
"""Labels, and values by time."""
Query = Callable[[str], Sequence[Series]]
"""The series of an expression over the time that is drawn."""

COLUMNS: Final = 24
UNIT_INCHES: Final = 0.55
ROW_INCHES: Final = 0.33
MOST_LINES: Final = 8
MOST_ROWS: Final = 6
HEADROOM: Final = 1.3
"""Highest value of an axis, by that of its lines: the legend is above them."""
GAP_STEPS: Final = 3
"""Values that are further apart are not joined, as in Grafana."""
INTERVAL: Final = "20s"
EVERYTHING: Final = ".*"
SCALES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
SUFFIXES: Final = {"Bps": "B/s", "bytes": "B", "s": "s", "reqps": " req/s", "ops": "/s", "rowsps": " rows/s"}


def filled(expression: str) -> str:
    """A panel's expression, with its variables: everything, and a rate over INTERVAL."""
    return re.sub(r"\$(?!__)\w+", EVERYTHING, expression.replace("$__rate_interval", INTERVAL))


def draw(dashboard: Mapping[str, Any], query: Query) -> Figure:
    """All panels of a dashboard; those without a series say "no data"."""
    panels = dashboard["panels"]
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels)
    figure = Figure((COLUMNS * UNIT_INCHES, height * ROW_INCHES + 0.5), dpi=80)
    figure.suptitle(dashboard["title"], x=0.01, ha="left", fontsize=12, weight="bold")
    for panel in panels:
        place = panel["gridPos"]
        top = 1 - 0.5 / (height * ROW_INCHES + 0.5)
        unit = top / height
        axes = figure.add_axes(
            (
                (place["x"] + 1.3) / COLUMNS,
                top - (place["y"] + place["h"] - 1.2) * unit,
                (place["w"] - 1.8) / COLUMNS,
                (place["h"] - 2.2) * unit,
            )
        )
        _panel(axes, panel, query)
    return figure


def _panel(axes: Axes, panel: Mapping[str, Any], query: Query) -> None:
    axes.set_title(panel["title"], loc="left", fontsize=9)
    unit = panel["fieldConfig"]["defaults"].get("unit", "none")
    found = [
        (_legend(target.get("legendFormat", ""), labels), labels, values)
        for target in panel["targets"]
        for labels, found_values in query(filled(target["expr"]))
        if (values := [one for one in found_values if one[1] == one[1]])  # not NaN
    ]
    if panel["type"] != "timeseries" or not found:
        axes.set_axis_off()
    if not found:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color="gray", transform=axes.transAxes)
    elif panel["type"] == "stat":
        _stat(axes, [(name, value) for name, _, value in _current(found)], unit)
    elif panel["type"] == "table":
        _table(axes, [(labels, value) for _, labels, value in _current(found)])
    else:
        _lines(axes, [(name, values) for name, _, values in found], unit)


def _current(
    found: Sequence[tuple[str, Mapping[str, str], Sequence[tuple[float, float]]]],
) -> Sequence[tuple[str, Mapping[str, str], float]]:
    """The last values, without series that had ended by then."""
    end = max(values[-1][0] for _, _, values in found)
    return [(name, labels, values[-1][1]) for name, labels, values in found if values[-1][0] == end]


def _stat(axes: Axes, found: Sequence[tuple[str, float]], unit: str) -> None:
    shown = found[:3]
    for index, (name, value) in enumerate(shown):
        x = (index + 0.5) / len(shown)
        text: dict[str, Any] = {"ha": "center", "va": "center", "transform": axes.transAxes}
        axes.text(x, 0.6, amount(value, unit), fontsize=15, color="tab:green", **text)
        axes.text(x, 0.1, name, fontsize=7, color="gray", **text)


def _table(axes: Axes, found: Sequence[tuple[Mapping[str, str], float]]) -> None:
    for index, (labels, value) in enumerate(found[:MOST_ROWS]):
        text = "   ".join(f"{key}: {one}" for key, one in labels.items() if key != "__name__")
        axes.text(0, 1 - (index + 0.7) / MOST_ROWS, f"{text}   {amount(value, 'none')}", fontsize=7)


def _lines(axes: Axes, found: Sequence[tuple[str, Sequence[tuple[float, float]]]], unit: str) -> None:
    largest = sorted(found, key=lambda one: -max(value for _, value in one[1]))
    for name, values in largest[:MOST_LINES]:
        points = _with_gaps(values)
        times = [datetime.fromtimestamp(at, UTC) for at, _ in points]
        axes.plot(times, [value for _, value in points], label=_shown(name), linewidth=1.1)  # type: ignore[arg-type]
    axes.set_ylim(0, HEADROOM * max(value for _, values in largest for _, value in values) or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, unit)))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(MinuteLocator())  # type: ignore[no-untyped-call]
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if any(name for name, _ in found):
        axes.legend(fontsize=6, loc="upper left", framealpha=0.6)


def _with_gaps(values: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The points of a line, with one that is no number where values are missing."""
    if len(values) < 3:
        return values
    usual = min(after[0] - before[0] for before, after in pairwise(values))
    found = [values[0]]
    for before, after in pairwise(values):
        if after[0] - before[0] > GAP_STEPS * usual:
            found.append((before[0] + usual, math.nan))
        found.append(after)
    return found


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template)


def _shown(name: str) -> str:
    """A legend's text; matplotlib leaves out those that begin with an underscore."""
    return f"\u200b{name}" if name.startswith("_") else name


def amount(value: float, unit: str) -> str:
    """A number in a panel's unit, as short as an axis needs it."""
    if value != value:
        return "-"
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    for factor, letter in SCALES:
        if abs(value) >= factor and unit != "s":
            return f"{value / factor:.3g} {letter}{SUFFIXES.get(unit, '')}"
    return f"{value:.3g}{'' if unit == 'none' else ' ' * (unit in ('Bps', 'bytes', 's'))}{SUFFIXES.get(unit, '')}"
