"""`millstream topic list | describe | create | alter | delete`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import click

from millstream.commands.config import confirm_losses, of_mirrors
from millstream.configs import Resource, describe_configs
from millstream.errors import BadInput, Failed, Interrupted
from millstream.losses import owner
from millstream.mirrors import writers_of
from millstream.options import TOPIC, Settings, Whole, common, confirm, dry_run, pairs, yes
from millstream.output import ids, printable, show, show_table, tell
from millstream.topics import (
    alter_topic,
    create_topic,
    delete_topics,
    describe_topic,
    list_topics,
    require_topics,
)
from millstream.words import count

PARTITIONS = Whole(1, 100_000)  # what librdkafka sends
config_option = click.option(
    "--config",
    "-c",
    "configs",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a configuration key; repeatable.",
)
common_beside_config = partial(common, config=("--command-config",))
"""For commands whose --config is that of the topic, as in Kafka's own tools."""


@click.group()
@common
def topic() -> None:
    """List, describe, create, alter and delete topics."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include the brokers' own topics.")
@common
@click.pass_obj
def topic_list(settings: Settings, internal: bool) -> None:
    """List all topics."""
    found = list_topics(settings.cluster, internal=internal)
    show(
        settings,
        [asdict(topic) for topic in found],
        ("TOPIC", "PARTITIONS", "REPLICATION"),
        [(topic.name, topic.partitions, topic.replication_factor) for topic in found],
    )


@topic.command("describe")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@common
@click.pass_obj
def topic_describe(settings: Settings, name: str) -> None:
    """Show a topic: its partitions with their offsets, and its configuration."""
    found = describe_topic(settings.cluster, name)
    if settings.output == "table":
        click.echo(f"topic {found.name}, id {found.topic_id}")
        for key, value in found.config.items():
            click.echo(f"  {key}={printable(value)}")
    show(
        settings,
        asdict(found),
        ("PARTITION", "LEADER", "REPLICAS", "ISR", "EARLIEST", "LATEST", "RECORDS"),
        [
            (
                p.partition,
                "none" if p.leader < 0 else p.leader,
                ids(p.replicas),
                ids(p.isr),
                p.earliest,
                p.latest,
                None if p.latest is None or p.earliest is None else p.latest - p.earliest,
            )
            for p in found.partitions
        ],
    )


@topic.command("create")
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", "-p", type=PARTITIONS, help="Partitions (default: the brokers').")
@click.option(
    "--replication-factor", "-r", type=Whole(1, 32767),
    help="Replicas of each partition (default: the brokers').",
)  # fmt: skip
@config_option
@dry_run
@common_beside_config
@click.pass_obj
def topic_create(
    settings: Settings,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Create a topic."""
    config = pairs("--config", configs)
    create_topic(
        settings.cluster,
        name,
        partitions=partitions,
        replication_factor=replication_factor,
        config=config,
        validate_only=dry_run,
    )
    asked = {"partitions": partitions, "replication_factor": replication_factor, "config": config}
    said = "could be created; nothing was changed" if dry_run else "created"
    tell(settings, {"topic": name, **asked, "dry_run": dry_run}, f"topic {name}: {said}")


@topic.command("alter")
@click.argument("name", metavar="TOPIC", type=TOPIC)
@click.option("--partitions", "-p", type=PARTITIONS, help="New total; partitions cannot be removed.")
@config_option
@click.option(
    "--delete-config", "-d", "resets", metavar="KEY", multiple=True,
    help="Reset a configuration key to its default; repeatable.",
)  # fmt: skip
@dry_run
@yes
@common_beside_config
@click.pass_obj
def topic_alter(
    settings: Settings,
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    resets: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Add partitions to a topic, or change its configuration.

    More partitions ask for confirmation: records of a key go to another partition from then on, and
    partitions cannot be removed. So does a change that deletes records.
    """
    config = pairs("--config", configs)
    if partitions is None and not config and not resets:
        raise BadInput("topic alter: nothing to change", "name --partitions, --config or --delete-config")

    def alter(*, validate_only: bool) -> None:
        alter_topic(
            settings.cluster,
            name,
            partitions=partitions,
            set_configs=config,
            delete_configs=resets,
            validate_only=validate_only,
        )

    if not dry_run:
        alter(validate_only=True)
        confirm_losses(settings, "topic alter", name, config, resets, yes)
    if partitions is not None and not dry_run:
        confirm(
            "topic alter",
            f"Give topic {name} {count(partitions, 'partition')}? They cannot be removed.",
            yes=yes,
        )
    alter(validate_only=dry_run)
    changes = [] if partitions is None else [count(partitions, "partition")]
    changes += [f"{key}={value}" for key, value in config.items()] + [f"{key} reset" for key in resets]
    said = "could be altered; nothing was changed" if dry_run else "altered"
    asked = {"partitions": partitions, "config": config, "reset": list(resets)}
    tell(
        settings, {"topic": name, **asked, "dry_run": dry_run}, f"topic {name}: {said}: {', '.join(changes)}"
    )


@topic.command("delete")
@click.argument("names", metavar="TOPIC...", type=TOPIC, nargs=-1, required=True)
@dry_run
@yes
@common
@click.pass_obj
def topic_delete(settings: Settings, names: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Delete topics and all their records. Asks for confirmation."""
    cluster = settings.cluster
    require_topics(cluster, names)
    details = [describe_topic(cluster, name) for name in dict.fromkeys(names)]
    if settings.output == "table" and not yes:
        show_table(
            ("TOPIC", "PARTITIONS", "RECORDS"),
            [
                (
                    topic.name,
                    len(topic.partitions),
                    sum((p.latest or 0) - (p.earliest or 0) for p in topic.partitions),
                )
                for topic in details
            ],
        )
    if dry_run:
        done = {"topics": [topic.name for topic in details], "dry_run": True}
        tell(settings, done, "nothing was changed (--dry-run)")
        return
    for topic in details:
        if whose := owner(describe_configs(cluster, Resource("topic", topic.name))):
            click.echo(f"topic {topic.name}: {whose}: it is created again", err=True)
        elif mirrors := writers_of(cluster, topic.name):
            again = "it is created again, with what the source still has"
            click.echo(f"topic {topic.name}: {of_mirrors(mirrors)}: {again}", err=True)
    which = f"topic {details[0].name}" if len(details) == 1 else f"{len(details)} topics"
    confirm("topic delete", f"Delete {which}, with all records?", yes=yes)
    deleted: list[str] = []
    try:
        for topic in details:
            if why := delete_topics(cluster, [topic.name])[topic.name]:
                raise Failed(f"topic {topic.name} was not deleted", why)
            deleted.append(topic.name)
            if settings.output == "table":
                click.echo(f"topic {topic.name}: deleted")
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {count(len(deleted), 'topic')} deleted") from None
    if settings.output == "json":
        tell(settings, {"topics": deleted, "dry_run": False})
