"""`millstream config get | set | reset`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from millstream.configs import Resource, alter_configs, describe_brokers, describe_configs
from millstream.errors import BadInput
from millstream.losses import default_losses, losses, owner, resets_a_limit
from millstream.mirrors import writers_of
from millstream.options import Settings, common, confirm, dry_run, pairs, yes
from millstream.output import show, tell

resource_argument = click.argument("resource", metavar="topic/NAME|broker/ID")


@click.group()
@common
def config() -> None:
    """Show and change the configuration of topics and brokers."""


@config.command("get")
@resource_argument
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--all", "-a", "everything", is_flag=True, help="Include inherited values and defaults.")
@common
@click.pass_obj
def config_get(settings: Settings, resource: str, keys: tuple[str, ...], everything: bool) -> None:
    """Show what is set on a topic or broker, or the values of these keys with their source."""
    asked = Resource.parse(resource)
    found = describe_configs(settings.cluster, asked)
    known = {setting.key for setting in found}
    for key in keys:
        if key not in known:
            raise BadInput(
                f"{asked} has no key {key}", f"millstream config get {resource} --all shows its keys"
            )
    shown = [setting for setting in found if (setting.key in keys if keys else everything or setting.own)]
    show(
        settings,
        [asdict(setting) for setting in shown],
        ("KEY", "VALUE", "SOURCE"),
        [(setting.key, setting.value, setting.source) for setting in shown],
    )


@config.command("set")
@resource_argument
@click.argument("configs", metavar="KEY=VALUE...", nargs=-1, required=True)
@dry_run
@yes
@common
@click.pass_obj
def config_set(settings: Settings, resource: str, configs: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Set keys of a topic or broker, all or none of them.

    Asks for confirmation for a broker, and if records of the topic would be deleted.
    """
    _alter(settings, "config set", resource, pairs("KEY=VALUE", configs), (), dry_run, yes)


@config.command("reset")
@resource_argument
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@dry_run
@yes
@common
@click.pass_obj
def config_reset(settings: Settings, resource: str, keys: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Reset keys of a topic or broker to their default.

    Asks for confirmation for a broker, and if records of the topic could be deleted.
    """
    _alter(settings, "config reset", resource, {}, keys, dry_run, yes)


def confirm_losses(
    settings: Settings, command: str, topic: str, configs: dict[str, str], resets: Sequence[str], yes: bool
) -> None:
    """Ask before a change that deletes records; say if the topic belongs to a mirror or a Topic resource."""
    there = describe_configs(settings.cluster, Resource("topic", topic))
    if whose := owner(there, (*configs, *resets)):
        click.echo(f"topic {topic}: {whose}", err=True)
    brokers = describe_brokers(settings.cluster) if resets_a_limit(there, resets) else ()
    if lost := losses(there, configs, resets, brokers):
        if not whose and (mirrors := writers_of(settings.cluster, topic)):
            click.echo(f"topic {topic}: {of_mirrors(mirrors)}; what is deleted is not copied again", err=True)
        confirm(command, f"Change topic {topic}? {'; '.join(lost)}.", yes=yes)


def of_mirrors(mirrors: Sequence[str]) -> str:
    return f"{' and '.join(mirrors)} {'copies' if len(mirrors) == 1 else 'copy'} records into it"


def _alter(
    settings: Settings,
    command: str,
    resource: str,
    configs: dict[str, str],
    resets: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    asked, cluster = Resource.parse(resource), settings.cluster
    alter_configs(cluster, asked, configs, resets, validate_only=True)
    if not dry_run:
        if asked.kind == "broker":
            lost = default_losses(describe_configs(cluster, asked), configs, resets)
            question = f"Change the configuration of {asked} while it runs?"
            confirm(command, f"{question} {'; '.join(lost)}." if lost else question, yes=yes)
        else:
            confirm_losses(settings, command, asked.name, configs, resets, yes)
        alter_configs(cluster, asked, configs, resets)
    changes = ", ".join(
        [f"{key}={value}" for key, value in configs.items()] + [f"{key} reset" for key in resets]
    )
    said = "could be changed; nothing was changed" if dry_run else "changed"
    done = {"resource": resource, "config": configs, "reset": list(resets), "dry_run": dry_run}
    tell(settings, done, f"{asked}: {said}: {changes}")
