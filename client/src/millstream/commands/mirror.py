"""`millstream mirror`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial

import click

from millstream import client_config
from millstream.connection import Cluster
from millstream.errors import BadInput, Failed, Interrupted, MillstreamError
from millstream.mirrors import Mirror, mirror_status
from millstream.options import Command, Seconds, Settings, common, pairs
from millstream.output import printable, show, tell
from millstream.words import count

LOOK_S = 0.5
SHOWN = 5
"""Topics in a message."""


@click.group()
@common
def mirror() -> None:
    """Show the mirrors that copy into a cluster."""


def _connections(command: Command) -> Command:
    """The options that name clusters besides --bootstrap."""
    for option in (
        click.option(
            "--source-config", "source_files", metavar="NAME=FILE", multiple=True,
            help="Client properties for a source, as --config has them for the target; repeatable.",
        ),
        click.option(
            "--source", "-s", "sources", metavar="NAME=HOST:PORT", multiple=True,
            help="Address of a source, to show the lag behind it; repeatable.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@mirror.command("status")
@click.argument("name", metavar="[MIRROR]", required=False)
@_connections
@common
@click.pass_obj
def mirror_status_command(
    settings: Settings,
    name: str | None,
    sources: tuple[str, ...],
    source_files: tuple[str, ...],
) -> None:
    """Show the mirrors into this cluster, or the topics of one: --bootstrap names the target.

    A mirror whose group is Empty has no workers now. CAUGHT UP is when the partition that is furthest behind had last
    caught up, as of its last record. MISSING are the records of the last gap in each partition: the source deleted them
    before they were mirrored. PROMOTED topics are writable, and not mirrored any more; LAG leaves them out.
    """
    found = _looking(settings, name, sources, source_files)()
    if name is None:
        head = (
            "MIRROR",
            "SOURCE",
            "STATE",
            "WORKERS",
            "TOPICS",
            "PROMOTED",
            "PARTITIONS",
            "LAG",
            "CAUGHT UP",
        )
        rows = [_row(mirror) for mirror in found]
    else:
        head = (
            "SOURCE",
            "STATE",
            "WORKERS",
            "TOPIC",
            "PROMOTED",
            "PARTITIONS",
            "LAG",
            "CAUGHT UP",
            "MISSING",
        )
        rows = [
            (
                *(mirror.source, mirror.state, mirror.workers, topic.topic, "yes" if topic.promoted else "-"),
                *(topic.partitions, topic.lag),
                *(topic.caught_up or "-", sum(gap.until - gap.first for gap in topic.gaps)),
            )
            for mirror in found
            for topic in mirror.topics
        ]
    show(settings, [asdict(mirror) for mirror in found], head, rows)


@mirror.command("wait")
@click.argument("name", metavar="MIRROR")
@_connections
@click.option(
    "--timeout", type=Seconds(0, 604_800), default=300.0, show_default=True, metavar="SECONDS",
    help="How long to wait; then the exit status is 1.",
)  # fmt: skip
@common
@click.pass_obj
def mirror_wait_command(
    settings: Settings,
    name: str,
    sources: tuple[str, ...],
    source_files: tuple[str, ...],
    timeout: float,
) -> None:
    """Wait until a mirror has copied every record of its sources, and recorded that: --bootstrap names the target.

    It compares with the present ends of the sources, so stop the producers first. Name the address of each source with
    --source, and at least one of its topics must be mirrored. Topics that the mirror has not begun do not count, nor do
    promoted ones. If a cluster stops responding meanwhile, the command tries again until the time is over.
    """
    look, named = _looking(settings, name, sources, source_files), pairs("--source", sources)
    until, before = time.monotonic() + timeout, ""
    try:
        found = look()  # a first look that fails, as at a wrong address, ends the command
        now = _left(found, named)
        while now:
            if time.monotonic() >= until:
                raise Failed(
                    f"{name}: not copied within {timeout:g} s: {now}",
                    f"`millstream mirror status {name}` shows whether its workers run",
                    retriable=True,
                )
            if now != before:
                click.echo(printable(f"{name}: waiting: {now}"), err=True)
            before = now
            time.sleep(LOOK_S)
            found, now = _again(look, named)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {before or 'nothing was read'}") from None
    topics = sum(topic.mirrored for mirror in found for topic in mirror.topics)
    tell(
        settings,
        {"mirrors": [asdict(mirror) for mirror in found]},
        f"{name}: lag 0 in {count(topics, 'topic')}",
    )


def _left(found: list[Mirror], named: Collection[str]) -> str:
    """What there is to wait for; "" once everything is copied. ``named``: the sources with an address."""
    if missing := {mirror.source for mirror in found} - set(named):
        source = min(missing)
        raise BadInput(f"--source: {source} has no address", f"add --source {source}=HOST:PORT")
    return "; ".join(
        _behind(mirror)
        for mirror in found
        if mirror.lag != 0 or not any(topic.mirrored for topic in mirror.topics)
    )


def _again(look: Callable[[], list[Mirror]], named: Collection[str]) -> tuple[list[Mirror], str]:
    """A later look, and what there is to wait for; also the end of a failure that may pass."""
    try:
        found = look()
    except MillstreamError as error:
        if not error.retriable:
            raise
        return [], error.problem
    return found, _left(found, named)


def _behind(mirror: Mirror) -> str:
    """The topics with a lag; the one that is furthest behind comes first."""
    if not mirror.topics:
        return f"no topic of {mirror.source} has begun"
    mirrored = [topic for topic in mirror.topics if topic.mirrored]
    if not mirrored:
        why = sorted({"promoted" if topic.promoted else "deleted in the source" for topic in mirror.topics})
        return f"every topic of {mirror.source} is {' or '.join(why)}: nothing is mirrored"
    lags = {topic.topic: topic.lag for topic in mirrored if topic.lag != 0}
    largest = sorted(lags, key=lambda topic: -(lags[topic] or 0))
    some = [
        f"{topic} {'unknown' if lags[topic] is None else format(lags[topic], ',')}"
        for topic in largest[:SHOWN]
    ]
    more = [f"{len(largest) - SHOWN:,} more"] if len(largest) > SHOWN else []
    return f"lag behind {mirror.source}: {', '.join(some + more) or 'unknown'}" + (
        "" if mirror.workers else "; no worker runs"
    )


def _looking(
    settings: Settings,
    name: str | None,
    sources: tuple[str, ...],
    source_files: tuple[str, ...],
) -> Callable[[], list[Mirror]]:
    """A function that reads the status, over the same connections each time."""
    option = "--source-config"
    files, addresses = pairs(option, source_files), pairs("--source", sources)
    for source in files.keys() - addresses.keys():
        raise BadInput(f"{option}: {source} has no address", f"add --source {source}=HOST:PORT")
    configs = {source: client_config.read(option, path) for source, path in files.items()}
    origins = {
        source: Cluster(bootstrap, configs.get(source), f"{option}: {files.get(source)}")
        for source, bootstrap in addresses.items()
    }
    return partial(mirror_status, settings.cluster, name, origins)


def _row(mirror: Mirror) -> tuple[str | int | None, ...]:
    partitions = sum(topic.partitions for topic in mirror.topics)
    oldest = min((topic.caught_up for topic in mirror.topics), default="")
    return (
        *(mirror.mirror, mirror.source, mirror.state, mirror.workers),
        *(
            len(mirror.topics),
            sum(topic.promoted for topic in mirror.topics),
            partitions,
            mirror.lag,
            oldest or "-",
        ),
    )
