"""The audit's report: one self-contained HTML file, for a screen of any width.

The driver only holds what is drawn: TOPICS plots of at most BARS bars, SERVERS servers and ROWS rows of the
audit, those with the most missing records first. The page says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from html import escape
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from millstream_jobs.audits import bars
from millstream_jobs.audits.bars import Bar
from millstream_jobs.audits.counts import STATES
from millstream_jobs.audits.file import Audit, utc
from millstream_jobs.audits.reported import Bad
from millstream_jobs.audits.result import Audited, closed_sum

TOPICS, BARS, SERVERS, ROWS = 12, 96, 30, 100
BLUE, PALE, AMBER, RED, GREY = "#2f6fde", "#b9cdf3", "#e08a1e", "#c8372d", "#a9b3bd"
COLOURS = {
    "Complete": BLUE,
    "Open": PALE,
    "Missing": RED,
    "Duplicated": AMBER,
    "Unreported": AMBER,
    "Expired": GREY,
}
NAMES = {
    "produced": "reported by producers",
    "in_log": "in the log",
    "in_table": "in the tables",
    "missing": "missing",
    "duplicated": "duplicated in a table",
    "unreported": "found, but not reported",
    "expired": "deleted by retention",
}
ALWAYS = ("produced", "in_log", "in_table")


def render(wanted: Audit, rows: DataFrame, done: Audited, bad: Bad, now: datetime) -> str:
    """The page with an audit's rows, which ``done`` sums up."""
    sums = [closed_sum(name) for name in ("found", "missing")]
    topics = rows.groupBy("topic").agg(
        *sums,
        F.unix_seconds(F.min("window_start")).alias("first"),
        F.unix_seconds(F.max("window_start")).alias("last"),
    )
    drawn = topics.orderBy(F.desc("missing"), F.desc("found"), "topic").limit(TOPICS).collect()
    count = {state: number for state, number in done.windows.items() if number}
    return PAGE.format(
        name=escape(wanted.name),
        verdict=_verdict(done.windows, done.missing),
        now=f"{now:%Y-%m-%d %H:%M} UTC",
        window=wanted.window,
        grace=wanted.grace,
        bad=_bad(bad),
        cards="".join(_cards(done)),
        states="".join(
            f'<li><i style="background:{COLOURS[state]}"></i><b>{state}</b> {number:,}'
            f" <span>{STATES[state]}</span></li>"
            for state, number in count.items()
        ),
        left_out=_left_out(len(wanted.topics), TOPICS, "topics"),
        plots="".join(_plot(wanted, rows, row) for row in drawn)
        or "<p>There are no records in this time.</p>",
        servers=_servers(rows, sums) if wanted.server is not None else "",
        rows=_rows(wanted, rows, done.windows),
    )


def _verdict(windows: Mapping[str, int], missing: int) -> str:
    if windows["Missing"]:
        return f'<b class="bad">{missing:,} records are missing</b>'
    if any(windows[state] for state in ("Duplicated", "Unreported", "Expired")):
        return "<b>No record is missing, but not all agree</b>"
    return (
        "<b>All closed windows are complete</b>" if windows["Complete"] else "<b>No window is closed yet</b>"
    )


def _bad(bad: Bad) -> str:
    if not bad.count:
        return ""
    return f'<p class="bad">{bad.count:,} reports of producers cannot be counted. The first: {escape(bad.first)}.</p>'


def _cards(done: Audited) -> Iterator[str]:
    for name, words in NAMES.items():
        if (number := getattr(done, name)) is not None:
            bad = ' class="bad"' if name == "missing" and number else ""
            yield f'<div class="card"><span>{words}</span><b{bad}>{number:,}</b></div>'


def _plot(wanted: Audit, rows: DataFrame, topic: Row) -> str:
    """The plot of a topic's windows, from the first to the last; a bar combines as many windows as necessary."""
    first, width = topic["first"], wanted.window_s
    each = -(-((topic["last"] - first) // width + 1) // BARS)
    long = each * width
    is_open = F.col("state") == "Open"
    some = rows.where(F.col("topic") == topic["topic"]).select(
        F.floor((F.unix_seconds("window_start") - F.lit(first)) / F.lit(long)).alias("bar"),
        F.when(~is_open, F.col("found") - F.coalesce("unreported", F.lit(0))).alias("agreed"),
        F.when(~is_open, F.col("missing_table")).alias("unloaded"),
        F.when(~is_open, F.col("unreported")).alias("unreported"),
        F.when(~is_open, F.col("missing")).alias("missing"),
        F.when(~is_open, F.col("expired")).alias("expired"),
        F.when(is_open, F.col("found")).alias("open"),
    )
    columns = ("agreed", "unloaded", "unreported", "missing", "expired", "open")
    sums = some.groupBy("bar").agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in columns))
    found = {row["bar"]: row for row in sums.collect()}
    drawn = [
        _bar(utc(begin), found.get(number))
        for number, begin in enumerate(range(first, topic["last"] + 1, long))
    ]
    merged = f"; a bar is {each:,} windows" if each > 1 else ""
    name = topic["topic"]
    ends = [f"{utc(at):%Y-%m-%d %H:%M}" for at in (first, topic["last"] + width)]
    plot = bars.draw(drawn, f"Records of {name} by window", *ends)
    missing = topic["missing"] or 0
    said = f'<span class="bad">{missing:,} missing</span>' if missing else f"{topic['found'] or 0:,} found"
    return (
        f"<figure><figcaption>{escape(name)}: {said}<small>records by window of {wanted.window}{merged}</small>"
        f"</figcaption>{plot}</figure>"
    )


def _bar(begin: datetime, row: Row | None) -> Bar:
    if row is None:
        return Bar(begin, {}, f"{begin:%Y-%m-%d %H:%M}: no records")
    # Records that no table has are found in the log, but drawn as missing.
    parts = {
        BLUE: max(row["agreed"] - row["unloaded"], 0),
        AMBER: row["unreported"],
        PALE: row["open"],
        GREY: row["expired"],
        RED: row["missing"],
    }
    names = ("complete", "not reported", "open", "deleted by retention", "missing")
    shown = ", ".join(
        f"{number:,} {name}" for name, number in zip(names, parts.values(), strict=True) if number
    )
    return Bar(begin, parts, f"{begin:%Y-%m-%d %H:%M}: {shown or 'no records'}")


def _servers(rows: DataFrame, sums: list[Any]) -> str:
    servers = rows.groupBy("server").agg(*sums).orderBy(F.desc("missing"), F.desc("found"), "server")
    shown = servers.limit(SERVERS + 1).collect()
    number = len(shown) if len(shown) <= SERVERS else servers.count()
    lines = "".join(
        f'<div class="row"><span>{escape(row["server"] or "(none)")}</span><em>{row["found"] or 0:,}</em>'
        f"<b{' class=bad' if row['missing'] else ''}>{row['missing'] or 0:,}</b></div>"
        for row in shown[:SERVERS]
    )
    head = '<div class="row head"><span>server</span><em>found</em><b>missing</b></div>'
    return f"<h2>By server</h2>{_left_out(number, SERVERS, 'servers')}{head}{lines}"


def _rows(wanted: Audit, rows: DataFrame, windows: Mapping[str, int]) -> str:
    number = sum(windows[state] for state in windows if state not in ("Complete", "Open"))
    if not number:
        return "<p>None.</p>"
    order = F.desc("missing"), F.desc("duplicated"), F.desc("unreported"), "topic", "window_start", "server"
    wrong = rows.where(~F.col("state").isin("Complete", "Open")).orderBy(*order).limit(ROWS)
    shown = wrong.withColumn("begin", F.unix_seconds("window_start")).collect()
    return _left_out(number, ROWS, "rows") + "".join(_row(wanted, row) for row in shown)


def _row(wanted: Audit, row: Row) -> str:
    where = f"{utc(row['begin']):%Y-%m-%d %H:%M:%S}"
    if wanted.server is not None:
        where += f", {escape(row['server'] or '(none)')}"
    counts = {name: row[name] for name in NAMES if row[name] or (row[name] == 0 and name in ALWAYS)}
    details = [f"{NAMES[name]} <b>{number:,}</b>" for name, number in counts.items()]
    if row["first_missing"]:
        details.append(f"first in no table: {escape(row['first_missing'])}")
    if row["lateness_s"]:
        details.append(f"last record {timedelta(seconds=row['lateness_s'])} after its end")
    return (
        f'<div class="window"><i style="background:{COLOURS[row["state"]]}">{row["state"]}</i>'
        f"<b>{escape(row['topic'])}</b> {where}<small>{' · '.join(details)}</small></div>"
    )


def _left_out(number: int, most: int, what: str) -> str:
    if number <= most:
        return ""
    return f"<p>{most:,} of {number:,} {what}, those with the most missing records first.</p>"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Millstream audit: {name}</title>
<style>
  :root {{ --ink: #1c2733; --quiet: #66727f; --line: #e6eaee; --blue: #2f6fde; --red: #c8372d; }}
  * {{ box-sizing: border-box; }}
  body {{ margin: 0 auto; max-width: 1080px; padding: clamp(20px, 4vw, 40px) clamp(16px, 3vw, 24px) 64px;
         color: var(--ink); background: #fff; overflow-wrap: anywhere;
         font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
  header span {{ color: var(--blue); font-weight: 600; }}
  h1 {{ font-size: clamp(23px, 5vw, 30px); line-height: 1.2; margin: 0; letter-spacing: -.01em; }}
  h2 {{ font-size: 18px; margin: 36px 0 6px; }}
  p, small, li span {{ color: var(--quiet); }}
  p {{ margin: 6px 0 16px; max-width: 70ch; }}
  p b {{ color: var(--ink); }}
  .bad, p .bad {{ color: var(--red); }}
  .cards, .figures {{ display: grid; gap: 12px; }}
  .cards {{ grid-template-columns: repeat(auto-fit, minmax(min(150px, 100%), 1fr)); }}
  .figures {{ grid-template-columns: repeat(auto-fit, minmax(min(380px, 100%), 1fr)); gap: 28px; }}
  .card {{ border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; }}
  .card span {{ display: block; color: var(--quiet); font-size: 13px; }}
  .card b {{ font-size: 22px; font-variant-numeric: tabular-nums; letter-spacing: -.02em; }}
  figure {{ margin: 0; min-width: 0; max-width: 540px; }}
  figcaption {{ font-weight: 600; margin-bottom: 6px; }}
  small {{ display: block; font-weight: 400; font-size: 13px; }}
  svg {{ display: block; width: 100%; height: auto; }}
  svg text {{ font-size: 11px; fill: var(--quiet); }}
  svg .grid {{ stroke: var(--line); }}
  ul {{ list-style: none; margin: 16px 0 0; padding: 0; }}
  li {{ padding: 3px 0; }}
  li i {{ display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }}
  .row {{ display: grid; grid-template-columns: minmax(0, 1fr) 7em 7em; gap: 12px; padding: 5px 0;
         border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }}
  .row b, .row em {{ font-weight: 400; font-style: normal; text-align: right; }}
  .row.head {{ color: var(--quiet); }}
  .window {{ padding: 8px 0; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }}
  .window i {{ font-style: normal; font-size: 12px; color: #fff; border-radius: 4px;
              padding: 1px 6px; margin-right: 8px; }}
</style>
</head>
<body>
<header><span>Millstream</span>
<h1>Audit {name}</h1></header>
<p>{verdict}. {now}; windows of {window}, open until {grace} after their end. Sums are those of closed windows.</p>
{bad}
<div class="cards">{cards}</div>
<ul>{states}</ul>
<h2>By topic</h2>
{left_out}
<div class="figures">{plots}</div>
{servers}
<h2>Rows to look at</h2>
{rows}
</body>
</html>
"""
