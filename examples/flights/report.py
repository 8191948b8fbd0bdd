"""The demo's report: one HTML file that needs nothing beside it, and its figure as a PNG."""

from __future__ import annotations

import base64
import datetime as dt
import html
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pyarrow.dataset
from matplotlib.ticker import FuncFormatter, MaxNLocator

from traffic import Sample, Traffic

mpl.use("Agg")
INK, QUIET, GRID = "#1c2733", "#66727f", "#e6eaee"
BLUE, AMBER, TEAL = "#2f6fde", "#e08a1e", "#12908a"
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
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "grid.color": GRID,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
THOUSANDS = FuncFormatter(lambda value, _: f"{value / 1000:,.0f}k" if abs(value) >= 1000 else f"{value:,.0f}")


@dataclass(frozen=True, slots=True)
class Counts:
    """Flights by carrier on every stage; ``loaded`` is None when nothing was loaded."""

    published: Counter[str]
    consumed: Counter[str]
    loaded: Counter[str] | None
    names: Mapping[str, str]


def table_counts(table: Path) -> Counter[str]:
    """The rows of the loaded table by carrier, as another reader than Spark sees them."""
    carriers = pyarrow.dataset.dataset(table, partitioning="hive").to_table(columns=["carrier"])["carrier"]
    return Counter({one["values"]: one["counts"] for one in carriers.value_counts().to_pylist()})


def write(folder: Path, counts: Counts, traffic: Traffic, timings: Mapping[str, float]) -> Path:
    """Write report.html and report.png; the path of the first."""
    png = folder / "report.png"
    draw(png, traffic)
    page = folder / "report.html"
    page.write_text(render(png.read_bytes(), counts, traffic, timings), encoding="utf-8")
    return page


def draw(path: Path, traffic: Traffic) -> None:
    """Four panels: the year by hour of day at the left, the run by second at the right."""
    with plt.rc_context(STYLE):
        figure, ((flights, lag), (delays, rates)) = plt.subplots(
            2, 2, figsize=(13, 7.6), sharex="col", gridspec_kw={"hspace": 0.32, "wspace": 0.2}
        )
        _draw_hours(flights, delays, traffic)
        _draw_run(lag, rates, traffic)
        figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.25, facecolor="white")
        plt.close(figure)


def _draw_hours(flights: Any, delays: Any, traffic: Traffic) -> None:
    hours = sorted(hour for hour, seen in traffic.hours.items() if seen.left)
    flights.bar(hours, [traffic.hours[hour].flights for hour in hours], width=0.78, color=BLUE)
    flights.set_title("Flights by hour of departure")
    flights.yaxis.set_major_formatter(THOUSANDS)
    means = [traffic.hours[hour].mean_delay for hour in hours]
    delays.axhline(0, color=QUIET, linewidth=0.8)
    delays.plot(hours, means, color=AMBER, linewidth=2.2, marker="o", markersize=4.5)
    delays.fill_between(hours, means, color=AMBER, alpha=0.12)
    worst = max(hours, key=lambda hour: traffic.hours[hour].mean_delay)
    height = traffic.hours[worst].mean_delay
    delays.annotate(
        f"{height:.0f} minutes at {worst}:00",
        (worst, height),
        (0, 9),
        textcoords="offset points",
        ha="center",
    )
    delays.set_title("How late they left: mean minutes")
    delays.set_ylim(top=height * 1.25)
    delays.set_xticks(hours[::2], [f"{hour}:00" for hour in hours[::2]])


def _draw_run(lag: Any, rates: Any, traffic: Traffic) -> None:
    samples = [Sample(0, 0, 0, 0), *traffic.samples]
    seconds = [one.seconds for one in samples]
    records = [one.lag for one in samples]
    lag.plot(seconds, records, color=TEAL, linewidth=2.2)
    lag.fill_between(seconds, records, color=TEAL, alpha=0.12)
    lag.set_title("Lag of the group delay-watch: records")
    lag.yaxis.set_major_formatter(THOUSANDS)
    lag.set_ylim(bottom=0, top=max(*records, 1) * 1.18)
    top = max(samples, key=lambda one: one.lag)
    lag.annotate(f"{top.lag:,}", (top.seconds, top.lag), (0, 7), textcoords="offset points", ha="center")
    published, consumed = rate(samples, "published"), rate(samples, "consumed")
    for values, color, name in ((published, BLUE, "published"), (consumed, TEAL, "consumed")):
        rates.plot(seconds, values, color=color, linewidth=2.2, label=name)
    rates.legend(frameon=False, loc="upper right", ncols=2, labelcolor="linecolor", handlelength=1.2)
    rates.set_title("Rates: records a second")
    rates.yaxis.set_major_formatter(THOUSANDS)
    rates.set_ylim(bottom=0, top=max(*published, *consumed, 1) * 1.25)
    rates.xaxis.set_major_locator(MaxNLocator(integer=True))
    rates.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    rates.set_xlim(0, traffic.consume_s + 1)


def rate(samples: list[Sample], what: str, window_s: float = 1.0) -> list[float]:
    """Records a second at every sample, over the second before it."""
    found, first = [], 0
    for last, sample in enumerate(samples):
        while sample.seconds - samples[first].seconds > window_s and first < last - 1:
            first += 1
        passed = sample.seconds - samples[first].seconds
        found.append((getattr(sample, what) - getattr(samples[first], what)) / passed if passed else 0.0)
    return found


def render(png: bytes, counts: Counts, traffic: Traffic, timings: Mapping[str, float]) -> str:
    """The page, with the figure inside."""
    total = counts.published.total()
    loaded = f"{counts.loaded.total():,}" if counts.loaded is not None else "no Java 17"
    tiles = (
        ("published", f"{counts.published.total():,}", f"{total / traffic.publish_s:,.0f} records a second"),
        (
            "consumed",
            f"{counts.consumed.total():,}",
            f"{total / traffic.consume_s:,.0f} a second, by a group of two",
        ),
        ("loaded", loaded, "rows of Parquet, by date" if counts.loaded is not None else "not loaded"),
    )
    cards = "".join(
        f'<div class="card"><span>{name}</span><b>{value}</b><small>{note}</small></div>'
        for name, value, note in tiles
    )
    steps = "".join(
        f"<tr><td>{html.escape(step)}</td><td>{seconds:.1f} s</td></tr>" for step, seconds in timings.items()
    )
    image = base64.b64encode(png).decode()
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return PAGE.format(cards=cards, image=image, carriers=_carriers(counts), steps=steps, now=now)


def _carriers(counts: Counts) -> str:
    most = max(counts.published.values())
    rows = []
    for carrier, flights in counts.published.most_common():
        name = html.escape(counts.names.get(carrier, carrier))
        loaded = f"{counts.loaded[carrier]:,}" if counts.loaded is not None else "–"
        bar = f'<i style="width:{100 * flights / most:.1f}%"></i>'
        rows.append(
            f"<tr><td>{html.escape(carrier)}</td><td>{name}</td><td class='bar'>{bar}</td>"
            f"<td>{flights:,}</td><td>{counts.consumed[carrier]:,}</td><td>{loaded}</td></tr>"
        )
    return "".join(rows)


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Millstream: a year of flights</title>
<style>
  :root {{ --ink: #1c2733; --quiet: #66727f; --line: #e6eaee; --blue: #2f6fde; }}
  body {{ margin: 0 auto; max-width: 1080px; padding: 40px 24px 64px; color: var(--ink); background: #fff;
         font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
  h1 {{ font-size: 28px; margin: 0; letter-spacing: -.01em; }}
  h2 {{ font-size: 17px; margin: 40px 0 8px; }}
  p {{ color: var(--quiet); margin: 4px 0 24px; max-width: 70ch; }}
  .cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 16px;
           margin-bottom: 32px; }}
  .card {{ border: 1px solid var(--line); border-radius: 10px; padding: 16px 20px; }}
  .card span, .card small {{ display: block; color: var(--quiet); }}
  .card b {{ font-size: 30px; font-variant-numeric: tabular-nums; letter-spacing: -.02em; }}
  img {{ width: 100%; height: auto; }}
  .wide {{ overflow-x: auto; }}
  table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
  th {{ text-align: left; font-weight: 500; color: var(--quiet); }}
  th, td {{ padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }}
  th:nth-child(n+4), td:nth-child(n+4) {{ text-align: right; }}
  .bar {{ width: 34%; }}
  .bar i {{ display: block; height: 10px; border-radius: 3px; background: var(--blue); }}
  .steps {{ width: auto; }}
  .steps td:last-child {{ text-align: right; }}
</style>
<h1>A year of flights through the log</h1>
<p>Every flight that left New York in 2013, published as a JSON event, consumed by a group of two, and loaded into
Parquet by Spark; counted on each stage, carrier by carrier. {now}</p>
<div class="cards">{cards}</div>
<img alt="Flights and mean delay by hour of departure; lag of the group and rates over the time of the run"
 src="data:image/png;base64,{image}">
<h2>By carrier</h2>
<div class="wide"><table>
<tr><th></th><th>carrier</th><th></th><th>published</th><th>consumed</th><th>loaded</th></tr>
{carriers}
</table></div>
<h2>How long it took</h2>
<table class="steps">{steps}</table>
</html>
"""
