"""`millstream audit report`."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.audits import AuditTally
from millstream.counts import WINDOW_S
from millstream.options import TOPIC, Settings, Whole, common
from millstream.output import show_json, show_table
from millstream.records import consume
from millstream.words import count


@click.group()
@common
def audit() -> None:
    """Compare what producers reported with what topics have."""


@audit.command("report")
@click.argument("names", metavar="TOPIC...", type=TOPIC, nargs=-1, required=True)
@click.option(
    "--reports", metavar="TOPIC", type=TOPIC, default="audits", show_default=True, help="Topic of reports."
)
@click.option(
    "--window", type=Whole(1), default=WINDOW_S, show_default=True, metavar="SECONDS",
    help="Length of a window; a multiple of that of the producers.",
)  # fmt: skip
@common
@click.pass_obj
def audit_report(settings: Settings, names: tuple[str, ...], reports: str, window: int) -> None:
    """Show what is missing, duplicated and late, by topic, window and server.

    It reads the topics whole, so it is for topics of some million records; `millstream-audit` (docs/loads.md) is for
    larger ones and for tables. Producers stamp records and send reports with Producer(audit=…).
    """
    cluster = settings.cluster
    tally = AuditTally(names, window)
    for record in consume(cluster, reports):
        tally.report(record.value)
    for name in dict.fromkeys(names):
        for record in consume(cluster, name):
            tally.record(name, record.partition, record.offset, record.headers)
    rows, gaps = tally.rows(), tally.gaps()
    if settings.output == "json":
        found = {
            "rows": [asdict(row) for row in rows],
            "gaps": [asdict(gap) for gap in gaps],
            "bad_reports": tally.bad_reports,
            "unstamped": tally.unstamped,
        }
        show_json(found)
        return
    show_table(
        ("TOPIC", "WINDOW", "SERVER", "PRODUCED", "RECEIVED", "MISSING", "DUPLICATED", "LATE"),
        [tuple(asdict(row).values()) for row in rows],
    )
    for gap in gaps:
        after = f"after {gap.topic}-{gap.after[0]} offset {gap.after[1]}" if gap.after else "at its begin"
        numbers = f"{gap.first} to {gap.last}" if gap.last > gap.first else str(gap.first)
        click.echo(
            f"missing: {gap.topic}, server {gap.server}, producer {gap.producer}, number {numbers}, {after}"
        )
    if tally.bad_reports:
        click.echo(f"{count(tally.bad_reports, 'report')} in {reports} cannot be read")
    if tally.unstamped:
        click.echo(f"{count(tally.unstamped, 'record')} without a stamp")
