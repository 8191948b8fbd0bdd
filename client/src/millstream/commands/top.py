"""`millstream top`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from millstream.errors import Interrupted
from millstream.options import Seconds, Settings, Whole, common
from millstream.output import printable, show_json
from millstream.rates import GroupRate, TopicRate, group_rates, look, topic_rates

ROWS = 20


@click.command("top")
@click.option(
    "--interval", type=Seconds(0.2, 3600), default=2.0, show_default=True, metavar="SECONDS",
    help="Time between two lines of output.",
)  # fmt: skip
@click.option("--count", type=Whole(1), help="End after this many intervals; default: at Ctrl-C.")
@common
@click.pass_obj
def top(settings: Settings, interval: float, count: int | None) -> None:
    """Show live rates of topics and the lag of groups. With -o json: a line for each interval."""
    cluster = settings.cluster
    before, shown = look(cluster), 0
    console = Console(highlight=False, markup=False)
    is_live = console.is_terminal and settings.output != "json"
    try:
        with (
            Live(console=console, auto_refresh=False, screen=count is None)
            if is_live
            else nullcontext() as live
        ):
            while count is None or shown < count:
                time.sleep(interval)
                after = look(cluster)
                topics, groups = topic_rates(before, after), group_rates(before, after)
                before, shown = after, shown + 1
                if settings.output == "json":
                    found = [asdict(rate) for rate in topics], [asdict(rate) for rate in groups]
                    show_json({"topics": found[0], "groups": found[1]})
                elif live is not None:
                    live.update(_page(topics, groups), refresh=True)
                else:
                    console.print(_page(topics, groups), "")
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {shown} intervals") from None


def _page(topics: list[TopicRate], groups: list[GroupRate]) -> Group:
    return Group(
        _table(
            ("TOPIC", "RECORDS/S", "RECORDS"),
            [(topic.topic, _number(topic.records_per_s), f"{topic.records:,}") for topic in topics],
        ),
        "",
        _table(
            ("GROUP", "COMMITTED/S", "LAG"),
            [(group.group, _number(group.committed_per_s), f"{group.lag:,}") for group in groups],
        ),
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows[:ROWS]:
        table.add_row(*map(printable, row))
    if len(rows) > ROWS:
        table.add_row(f"and {len(rows) - ROWS:,} more", "", "")
    return table


def _number(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"
