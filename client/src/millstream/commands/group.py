"""`millstream group list | describe | reset | delete`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click

from millstream.errors import BadInput, Failed, Interrupted
from millstream.groups import (
    delete_groups,
    describe_group,
    group_states_of_any_kind,
    list_groups,
    unknown_group,
)
from millstream.options import GROUP, TOPIC, Integer, Settings, Whole, common, confirm, dry_run, yes
from millstream.output import show, show_json, show_table, tell
from millstream.resets import Position, Target, parse_datetime, plan_reset, reset
from millstream.words import count


@click.group()
@common
def group() -> None:
    """List, describe, reset and delete consumer groups."""


@group.command("list")
@common
@click.pass_obj
def group_list(settings: Settings) -> None:
    """List all groups."""
    found = list_groups(settings.cluster)
    show(
        settings,
        [asdict(group) for group in found],
        ("GROUP", "STATE"),
        [(group.group, group.state) for group in found],
    )


@group.command("describe")
@click.argument("name", metavar="GROUP", type=GROUP)
@common
@click.pass_obj
def group_describe(settings: Settings, name: str) -> None:
    """Show a group: its state, its members, and its lag by partition."""
    found = describe_group(settings.cluster, name)
    if settings.output == "table":
        members = count(len(found.members), "member")
        click.echo(f"group {found.group}, {found.state}, {members}, lag {found.lag:,}")
        if found.members:
            show_table(
                ("MEMBER", "HOST", "PARTITIONS"),
                [(member.client_id, member.host, ", ".join(member.partitions)) for member in found.members],
            )
    show(
        settings,
        asdict(found),
        ("TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG", "MEMBER"),
        [
            (p.topic, p.partition, _offset(p.committed), p.latest, p.lag, p.client_id or "-")
            for p in found.partitions
        ],
    )


@group.command("reset")
@click.argument("name", metavar="GROUP", type=GROUP)
@click.option(
    "--topic", "-t", "topics", type=TOPIC, multiple=True,
    help="Only this topic; repeatable (default: all topics where the group has offsets).",
)  # fmt: skip
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="After the last record.")
@click.option("--to-offset", type=Whole(0), metavar="N", help="To this offset in every partition.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record of this time or later: ISO 8601, UTC without a zone.",
)
@click.option(
    "--shift-by", type=Integer(), metavar="N", help="Forward by N records; backward if N is negative."
)
@dry_run
@yes
@common
@click.pass_obj
def group_reset(
    settings: Settings,
    name: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Set where a group continues to read. Its consumers must be stopped. Asks for confirmation.

    Exactly one of the --to options and --shift-by says where. Offsets stay within what a partition holds.
    """
    target = _target(
        {
            "earliest": 0 if to_earliest else None,
            "latest": 0 if to_latest else None,
            "offset": to_offset,
            "datetime": None if to_datetime is None else parse_datetime("--to-datetime", to_datetime),
            "shift": shift_by,
        }
    )
    cluster = settings.cluster
    moves = plan_reset(cluster, name, target, topics)
    done = {"group": name, "dry_run": dry_run, "partitions": [asdict(move) for move in moves]}
    if settings.output == "table":
        show_table(
            ("TOPIC", "PARTITION", "COMMITTED", "NEW"),
            [(move.topic, move.partition, _offset(move.committed), move.offset) for move in moves],
        )
    if not dry_run:
        question = f"Reset group {name} in {count(len(moves), 'partition')}?"
        confirm("group reset", question, yes=yes)
        reset(cluster, name, moves)
    said = "nothing was changed (--dry-run)" if dry_run else f"group {name}: reset"
    tell(settings, done, said)


@group.command("delete")
@click.argument("names", metavar="GROUP...", type=GROUP, nargs=-1, required=True)
@dry_run
@yes
@common
@click.pass_obj
def group_delete(settings: Settings, names: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Delete groups and their committed offsets. Their consumers must be stopped. Asks for confirmation."""
    cluster = settings.cluster
    names = tuple(dict.fromkeys(names))
    for name, (state, members) in group_states_of_any_kind(cluster, names).items():
        if state == "Dead":
            raise unknown_group(name)
        if members:
            raise Failed(
                f"group {name} is {state}, with {count(members, 'member')}", "stop its consumers first"
            )
    if dry_run:
        said = f"{', '.join(names)}: could be deleted; nothing was changed"
        tell(settings, {"groups": list(names), "dry_run": True}, said)
        return
    confirm("group delete", f"Delete {', '.join(names)} and their committed offsets?", yes=yes)
    deleted: list[str] = []
    try:
        for name in names:
            if why := delete_groups(cluster, [name])[name]:
                raise Failed(f"group {name} was not deleted", why)
            deleted.append(name)
            if settings.output == "table":
                click.echo(f"group {name}: deleted")
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {count(len(deleted), 'group')} deleted") from None
    if settings.output == "json":
        show_json({"groups": deleted, "dry_run": False})


def _target(given: Mapping[Position, int | None]) -> Target:
    named = [Target(position, number) for position, number in given.items() if number is not None]
    if len(named) != 1:
        raise BadInput(
            "group reset: exactly one target is required",
            "--to-earliest, --to-latest, --to-offset, --to-datetime or --shift-by",
        )
    return named[0]


def _offset(committed: int) -> int | None:
    return None if committed < 0 else committed
