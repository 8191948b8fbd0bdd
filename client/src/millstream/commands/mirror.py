"""`millstream mirror status`."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream import client_config
from millstream.connection import Cluster
from millstream.errors import BadInput
from millstream.mirrors import Mirror, mirror_status
from millstream.options import Settings, common, pairs
from millstream.output import show


@click.group()
@common
def mirror() -> None:
    """Show the mirrors that copy into a cluster."""


@mirror.command("status")
@click.argument("name", metavar="[MIRROR]", required=False)
@click.option(
    "--source", "-s", "sources", metavar="NAME=HOST:PORT", multiple=True,
    help="Address of a source, to show the lag behind it; repeatable.",
)  # fmt: skip
@click.option(
    "--client-config-file", "target_file", metavar="FILE",
    help="Settings for the target, such as TLS and SASL: lines of KEY=VALUE with librdkafka's keys.",
)  # fmt: skip
@click.option(
    "--source-config-file", "source_files", metavar="NAME=FILE", multiple=True,
    help="The same for a source; repeatable.",
)  # fmt: skip
@common
@click.pass_obj
def mirror_status_command(
    settings: Settings,
    name: str | None,
    sources: tuple[str, ...],
    target_file: str | None,
    source_files: tuple[str, ...],
) -> None:
    """Show the mirrors into this cluster, or the topics of one: --bootstrap names the target.

    A mirror whose group is Empty has no workers now. CAUGHT UP is when the partition that is furthest behind had last
    caught up, as of its last record. MISSING are records that the source deleted before they were mirrored. PROMOTED
    topics are writable, and not mirrored any more; LAG leaves them out.
    """
    option = "--source-config-file"
    files, addresses = pairs(option, source_files), pairs("--source", sources)
    for source in files.keys() - addresses.keys():
        raise BadInput(f"{option}: {source} has no address", f"add --source {source}=HOST:PORT")
    configs = {source: client_config.read(option, path) for source, path in files.items()}
    origins = {source: Cluster(bootstrap, configs.get(source)) for source, bootstrap in addresses.items()}
    target = client_config.read("--client-config-file", target_file) if target_file else {}
    found = mirror_status(Cluster(settings.bootstrap, target), name, origins)
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
        rows = [_row(one) for one in found]
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
                *(one.source, one.state, one.workers, topic.topic, "yes" if topic.promoted else "-"),
                *(topic.partitions, topic.lag),
                *(topic.caught_up or "-", sum(gap.until - gap.first for gap in topic.gaps)),
            )
            for one in found
            for topic in one.topics
        ]
    show(settings, [asdict(one) for one in found], head, rows)


def _row(one: Mirror) -> tuple[str | int | None, ...]:
    partitions = sum(topic.partitions for topic in one.topics)
    oldest = min((topic.caught_up for topic in one.topics), default="")
    return (
        *(one.mirror, one.source, one.state, one.workers),
        *(len(one.topics), sum(topic.promoted for topic in one.topics), partitions, one.lag, oldest or "-"),
    )
