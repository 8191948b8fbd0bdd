"""The demo's report: one self-contained HTML file, for a screen of any width."""

from __future__ import annotations

import base64
import datetime as dt
import html
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset

import figures
from replicated import Survived
from traffic import CONSUMERS, Traffic


@dataclass(frozen=True, slots=True)
class Counts:
    """Flights by carrier at every stage; ``loaded`` is None if nothing was loaded.

    ``cancelled`` are those that did not leave; ``names`` are the carriers' names by their codes.
    """

    published: Counter[str]
    consumed: Counter[str]
    loaded: Counter[str] | None
    cancelled: Counter[str]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """The report's data; ``survived`` is None if the part with three brokers was left out."""

    counts: Counts
    traffic: Traffic
    survived: Survived | None
    timings: Mapping[str, float]
    """Seconds by step."""


def table_counts(table: Path) -> Counter[str]:
    """The rows of the loaded table by carrier, read without Spark."""
    carriers = pyarrow.dataset.dataset(table, partitioning="hive").to_table(columns=["carrier"])["carrier"]
    return Counter({one["values"]: one["counts"] for one in carriers.value_counts().to_pylist()})


def write(folder: Path, run: Run) -> Path:
    """Write report.html; return its path."""
    page = folder / "report.html"
    page.write_text(render(run), encoding="utf-8")
    return page


def render(run: Run) -> str:
    """The page, with the figures inside."""
    total, cancelled = run.counts.published.total(), run.counts.cancelled.total()
    steps = "".join(
        f"<tr><td>{html.escape(step)}</td><td>{seconds:.1f} s</td></tr>"
        for step, seconds in run.timings.items()
    )
    return PAGE.format(
        flights=f"{total:,}",
        left=f"{total - cancelled:,}",
        cancelled=f"{cancelled:,}",
        now=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cards="".join(_cards(run)),
        failover=_failover(run.survived),
        figures="".join(_figures(run.traffic)),
        stages="published, consumed and loaded"
        if run.counts.loaded is not None
        else "published and consumed",
        carriers="".join(_carriers(run.counts)),
        steps=steps,
    )


def _cards(run: Run) -> Iterator[str]:
    counts, traffic = run.counts, run.traffic
    total = counts.published.total()
    yield _card(
        "published", f"{total:,}", f"in {traffic.publish_s:.1f} s, {total / traffic.publish_s:,.0f} a second"
    )
    consumed = f"after {traffic.consume_s:.1f} s, by a group of {CONSUMERS}"
    yield _card("consumed", f"{counts.consumed.total():,}", consumed)
    if counts.loaded is None:
        yield _card("loaded", "–", "left out: no Java 17")
    else:
        yield _card("loaded", f"{counts.loaded.total():,}", "rows of Parquet, partitioned by date")


def _card(name: str, value: str, note: str) -> str:
    return f'<div class="card"><span>{name}</span><b>{value}</b><small>{note}</small></div>'


def _figures(traffic: Traffic) -> Iterator[str]:
    yield _figure("Flights by scheduled hour of departure", figures.flights(traffic))
    yield _figure("Mean delay of those that left, in minutes", figures.delays(traffic))
    yield _figure("Lag of the group delay-watch, in records", figures.lag(traffic))
    yield _figure("Records a second", figures.rates(traffic))


def _figure(title: str, png: bytes) -> str:
    image = base64.b64encode(png).decode()
    return f'<figure><figcaption>{title}</figcaption><img alt="{title}" src="data:image/png;base64,{image}"></figure>'


def _failover(survived: Survived | None) -> str:
    if survived is None:
        return (
            "<h2>A broker is killed</h2><p>Left out: three brokers need ZooKeeper, which needs Java 17.</p>"
        )
    return (
        "<h2>A broker is killed</h2>"
        f"<p>The same flights through three brokers, with three replicas and <code>acks=all</code>. Broker "
        f"{survived.broker} was killed and started again; the longest wait for an acknowledgement was "
        f"{survived.silence_s:.1f} s; all {survived.read.total():,} flights are there, none twice.</p>"
        + _figure("Flights acknowledged", figures.failover(survived)).replace(
            "<figure>", '<figure class="one">'
        )
    )


def _carriers(counts: Counts) -> Iterator[str]:
    most = max(counts.published.values())
    for carrier, flights in counts.published.most_common():
        cancelled = counts.cancelled[carrier]
        left, lost = (100 * number / most for number in (flights - cancelled, cancelled))
        yield (
            f'<div class="row"><span>{html.escape(counts.names.get(carrier, carrier))}</span>'
            f'<span class="bar"><i style="width:{left:.2f}%"></i><i class="lost" style="width:{lost:.2f}%"></i></span>'
            f"<b>{flights - cancelled:,}</b><em>{cancelled:,}</em></div>"
        )


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Millstream: a year of flights</title>
<style>
  :root {{ --ink: #1c2733; --quiet: #66727f; --line: #e6eaee; --blue: #2f6fde; --amber: #e08a1e; }}
  * {{ box-sizing: border-box; }}
  body {{ margin: 0 auto; max-width: 1080px; padding: clamp(20px, 4vw, 40px) clamp(16px, 3vw, 24px) 64px;
         color: var(--ink); background: #fff;
         font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
  header span {{ color: var(--blue); font-weight: 600; }}
  h1 {{ font-size: clamp(23px, 5vw, 30px); line-height: 1.2; margin: 0; letter-spacing: -.01em; }}
  h2 {{ font-size: 18px; margin: 40px 0 4px; }}
  p {{ color: var(--quiet); margin: 6px 0 20px; max-width: 70ch; overflow-wrap: break-word; }}
  .cards, .figures {{ display: grid; gap: 16px; }}
  .cards {{ grid-template-columns: repeat(auto-fit, minmax(min(220px, 100%), 1fr)); }}
  .figures {{ grid-template-columns: repeat(auto-fit, minmax(min(380px, 100%), 1fr)); gap: 28px; }}
  .card {{ border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; }}
  .card span, .card small {{ display: block; color: var(--quiet); }}
  .card b {{ font-size: 28px; font-variant-numeric: tabular-nums; letter-spacing: -.02em; }}
  figure {{ margin: 0; min-width: 0; }}
  figure.one {{ max-width: 540px; }}
  figcaption {{ font-weight: 600; margin-bottom: 6px; }}
  img {{ display: block; width: 100%; height: auto; }}
  .row {{ display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr) 4.5em 5em; gap: 2px 12px;
         align-items: center; padding: 5px 0; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; }}
  .row b, .row em {{ font-weight: 400; font-style: normal; text-align: right; }}
  .row.head {{ color: var(--quiet); }}
  .row em {{ color: var(--amber); }}
  .bar {{ display: flex; height: 10px; border-radius: 3px; overflow: hidden; }}
  .bar i {{ background: var(--blue); }}
  .bar i.lost {{ background: var(--amber); }}
  table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
  td {{ padding: 5px 24px 5px 0; border-bottom: 1px solid var(--line); }}
  td:last-child {{ text-align: right; padding-right: 0; }}
  @media (max-width: 560px) {{
    .row {{ grid-template-columns: minmax(0, 1fr) 4.5em 5em; }}
    .row .bar {{ grid-row: 2; grid-column: 1 / -1; }}
  }}
</style>
</head>
<body>
<header><span>Millstream</span>
<h1>A year of flights through the log</h1></header>
<p>{flights} flights were scheduled from New York in 2013: {left} left, {cancelled} were cancelled. Each was published
as a JSON event, consumed by a group, and loaded into Parquet by Spark. {now}</p>
<div class="cards">{cards}</div>
{failover}
<h2>The year, and the run</h2>
<div class="figures">{figures}</div>
<h2>By carrier</h2>
<p>For each carrier, as many flights were {stages}.</p>
<div class="row head"><span>carrier</span><span class="bar"></span><b>left</b><em>cancelled</em></div>
{carriers}
<h2>How long it took</h2>
<table>{steps}</table>
</body>
</html>
"""
