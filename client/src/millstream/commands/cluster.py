"""`millstream cluster info`."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.clusters import describe_cluster
from millstream.options import Settings, common
from millstream.output import show
from millstream.words import count


@click.group()
@common
def cluster() -> None:
    """Show the cluster itself."""


@cluster.command("info")
@common
@click.pass_obj
def cluster_info(settings: Settings) -> None:
    """Show the cluster's id, its brokers, and whether all partitions have leaders and replicas."""
    found = describe_cluster(settings.cluster)
    if settings.output == "table":
        controller = "no controller" if found.controller < 0 else f"controller {found.controller}"
        click.echo(f"cluster {found.cluster_id}, {count(len(found.brokers), 'broker')}, {controller}")
        click.echo(
            f"{count(found.topics, 'topic')}, {count(found.partitions, 'partition')}: "
            f"{found.under_replicated:,} under-replicated, {found.without_leader:,} without a leader"
        )
    show(
        settings,
        asdict(found),
        ("BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS"),
        [
            (one.broker, f"{one.host}:{one.port}", one.rack, one.leaders, one.replicas)
            for one in found.brokers
        ],
    )
