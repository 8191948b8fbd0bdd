"""`millstream cluster info`."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.addresses import host_port
from millstream.clusters import describe_cluster
from millstream.options import Settings, common
from millstream.output import ids, show, show_table
from millstream.words import count

MAX_LISTED = 20
"""Most unhealthy partitions in a table; JSON has all of them."""


@click.group()
@common
def cluster() -> None:
    """Show the cluster itself."""


@cluster.command("info")
@common
@click.pass_obj
def cluster_info(settings: Settings) -> None:
    """Show the cluster's id, its brokers, and the partitions that lack in-sync replicas or a leader.

    A table lists at most 20 of these partitions; -o json lists all.
    """
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
            (broker.broker, host_port(broker.host, broker.port), broker.rack, broker.leaders, broker.replicas)
            for broker in found.brokers
        ],
    )
    if settings.output == "table" and found.unhealthy_partitions:
        click.echo("partitions that lack in-sync replicas or a leader:")
        listed = found.unhealthy_partitions[:MAX_LISTED]
        show_table(
            ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC"),
            [
                (
                    partition.topic,
                    partition.partition,
                    None if partition.leader < 0 else partition.leader,
                    ids(partition.replicas),
                    ids(partition.isr) or "none",
                )
                for partition in listed
            ],
        )
        if more := len(found.unhealthy_partitions) - len(listed):
            click.echo(f"and {more:,} more: -o json lists all")
