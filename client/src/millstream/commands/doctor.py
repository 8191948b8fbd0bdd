"""`millstream doctor`."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.diagnosis import diagnose
from millstream.errors import Failed
from millstream.options import TOPIC, Settings, common
from millstream.output import printable, show_json
from millstream.words import count


@click.command("doctor")
@click.option(
    "--clock", is_flag=True,
    help="Compare clocks, too: commits an offset of a new group for each broker, and deletes the group.",
)  # fmt: skip
@click.option(
    "--topic", "-t", "topics", metavar="NAME|^PATTERN", multiple=True, type=TOPIC,
    help="What a consumer subscribes to: say if the topic is missing, or the pattern matches none. Repeatable.",
)  # fmt: skip
@common
@click.pass_obj
def doctor(settings: Settings, clock: bool, topics: tuple[str, ...]) -> None:
    """Say why a cluster cannot be reached, or a consumer gets nothing.

    It checks names, ports, TLS, versions, SASL, advertised addresses, strays and leaders, on request topics and clocks.
    The exit status is 1 if a step has a problem.
    """
    found = []
    for finding in diagnose(settings.cluster, clock=clock, topics=topics):
        found.append(finding)
        if settings.output == "table":
            mark, text = ("bad", finding.problem) if finding.problem else ("ok ", finding.fact)
            click.echo(printable(f"{mark} {finding.step:<10} {finding.subject}: {text}"))
    if settings.output == "json":
        show_json([asdict(check) for check in found])
    if problems := sum(bool(check.problem) for check in found):
        raise Failed(f"{count(problems, 'problem')} found", "see the lines marked bad")
