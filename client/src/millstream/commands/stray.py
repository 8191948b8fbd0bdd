"""`millstream stray list | remove`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from millstream.administering.strays import Stray, list_strays, remove_strays
from millstream.errors import BadInput, Failed
from millstream.options import Settings, common, confirm, dry_run, yes
from millstream.output import show, show_table, tell
from millstream.words import count, size_of

HEAD = ("BROKER", "TOPIC", "PARTITION", "ID", "SIZE", "AGE")
"""`ID` is the topic id; without one, the name of the folder."""


@click.group()
@common
def stray() -> None:
    """List and remove strays: logs that fit no topic of the cluster, and that nobody deleted."""


@stray.command("list")
@common
@click.pass_obj
def stray_list(settings: Settings) -> None:
    """List the strays of all running brokers: topic, topic id (without one, the folder), size and age.

    A long topic is shortened. -o json also has log directories and folders.
    """
    found = list_strays(settings.cluster)
    show(settings, [asdict(stray) for stray in found], HEAD, _rows(found))


@stray.command("remove")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "of_all", is_flag=True, help="Remove all strays.")
@click.option("--broker", type=click.IntRange(0), help="Only those of this broker.")
@click.option("--partition", "-p", type=click.IntRange(0), help="Only those of this partition.")
@dry_run
@yes
@common
@click.pass_obj
def stray_remove(
    settings: Settings,
    ids: tuple[str, ...],
    of_all: bool,
    broker: int | None,
    partition: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove strays and their records, for good. Asks for confirmation.

    ID is a topic id, as `millstream stray list` shows it, or the name of a stray's folder. A log in use is never
    removed.
    """
    if bool(ids) == of_all:
        raise BadInput("stray remove: nothing to remove", "name ids of strays, or use --all, not both")
    found = [
        stray
        for stray in list_strays(settings.cluster)
        if broker in (None, stray.broker) and partition in (None, stray.partition)
    ]
    for given in ids:
        if not any(given in (stray.topic_id, stray.folder) for stray in found):
            raise Failed(
                f'there is no stray of "{given}"', "see millstream stray list; a log in use is not removed"
            )
    chosen = [stray for stray in found if of_all or stray.topic_id in ids or stray.folder in ids]
    if settings.output == "table":
        show_table(HEAD, _rows(chosen))
    if dry_run:
        done = {"strays": [asdict(stray) for stray in chosen], "dry_run": True}
        tell(settings, done, "nothing was changed (--dry-run)")
        return
    if not chosen:
        tell(settings, {"strays": [], "dry_run": False}, "there are no strays")
        return
    size = size_of(sum(stray.size for stray in chosen))
    what = f"{count(len(chosen), 'stray')} with {size}"
    confirm("stray remove", f"Remove {what}? Their records cannot be restored.", yes=yes)
    outcomes = remove_strays(settings.cluster, chosen)
    removed = [stray for stray, why in outcomes.items() if not why]
    tell(
        settings,
        {"strays": [asdict(stray) for stray in removed], "dry_run": False},
        f"removed {count(len(removed), 'stray')}",
    )
    for stray, why in outcomes.items():
        if why:
            raise Failed(f"broker {stray.broker} has not removed {stray.folder}", why)


def _rows(strays: Sequence[Stray]) -> list[tuple[object, ...]]:
    now_ms = time.time() * 1000
    return [
        (
            stray.broker,
            stray.topic,
            stray.partition,
            stray.topic_id or stray.folder,
            size_of(stray.size),
            _age(now_ms - stray.since_ms),
        )
        for stray in strays
    ]


def _age(age_ms: float) -> str:
    """In the largest unit of which it has at least two."""
    seconds = max(int(age_ms / 1000), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
