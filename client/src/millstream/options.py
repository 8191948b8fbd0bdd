"""Common options of commands, and the confirmation of dangerous ones."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from millstream import client_config
from millstream.client_config import DEFAULT_BOOTSTRAP, ClientConfig
from millstream.errors import BadInput, Declined, MillstreamError

if TYPE_CHECKING:  # Kafka's client is imported by the commands that use it
    from millstream.connection import Cluster

Command = TypeVar("Command", bound=Callable[..., Any])


class Settings:
    """The options of every command, given before or after its name."""

    def __init__(self) -> None:
        self.bootstrap: str | None = None
        self.config: str | None = None
        self.profile: str | None = None
        self.output = "table"
        self.options: dict[str, str] = {}
        """The options of the command that runs, by the parameters of the library that they set."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of --bootstrap, else of the file, else of the environment, with the file's settings."""
        from millstream.connection import Cluster

        found = self._client_config()
        bootstrap = self.bootstrap or found.bootstrap or os.environ.get("MILLSTREAM_BOOTSTRAP")
        return Cluster(bootstrap or DEFAULT_BOOTSTRAP, found.settings, found.where)

    def _client_config(self) -> ClientConfig:
        if self.config is not None and self.profile is not None:
            raise BadInput("--config and --profile are given", "give one of them")
        if self.config is not None:
            return client_config.load("--config", self.config)
        if self.profile is not None:
            return client_config.profile("--profile", self.profile)
        if path := os.environ.get("MILLSTREAM_CONFIG"):
            return client_config.load("MILLSTREAM_CONFIG", path)
        if name := os.environ.get("MILLSTREAM_PROFILE"):
            return client_config.profile("MILLSTREAM_PROFILE", name)
        return ClientConfig()


CONFIG = ("--config", "--command-config")
"""The option for client properties; the second name is that of Kafka's own tools."""


def common(command: Command, config: Sequence[str] = CONFIG) -> Command:
    """``--bootstrap``, ``--config``, ``--profile`` and ``--output``."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        settings = context.ensure_object(Settings)
        options = (option for option in context.command.params if isinstance(option, click.Option))
        settings.options = {str(option.name): max(option.opts, key=len) for option in options}
        if value is not None:
            setattr(settings, str(parameter.name), value)

    command = click.option(
        "--output", "-o", type=click.Choice(["table", "json"]), expose_value=False, callback=keep,
        help="Format of the results (default: table).",
    )(command)  # fmt: skip
    command = click.option(
        "--profile", metavar="NAME", expose_value=False, callback=keep,
        help="The file NAME.properties of your profiles, in ~/.config/millstream. [env: MILLSTREAM_PROFILE]",
    )(command)  # fmt: skip
    command = click.option(
        *config, "config", metavar="FILE", expose_value=False, callback=keep,
        help="Client properties, such as those of TLS and SASL: lines of KEY=VALUE with the keys of Kafka's Java "
        "clients or librdkafka's. [env: MILLSTREAM_CONFIG]",
    )(command)  # fmt: skip
    return click.option(
        "--bootstrap", "-b", metavar="HOST:PORT", expose_value=False, callback=keep,
        help="Address of the cluster; separate several with commas. "
        f"[env: MILLSTREAM_BOOTSTRAP; default: {DEFAULT_BOOTSTRAP}]",
    )(command)  # fmt: skip


dry_run = click.option("--dry-run", is_flag=True, help="Check everything, show the result, change nothing.")
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(command: str, question: str, *, yes: bool) -> None:
    """Ask on a terminal before a change; without a terminal, ``--yes`` is required."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            f"{command}: cannot ask for confirmation without a terminal",
            f"add --yes, or --dry-run. {question}",
        )
    if not click.confirm(question, err=True):
        raise Declined("nothing was changed")


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE arguments as a mapping; the value may be empty and may contain more equals signs."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise BadInput(f'{option}: "{text}" is not allowed', "write KEY=VALUE")
        if key in found:
            raise BadInput(f"{option}: {key} is given twice", "give each key once")
        found[key] = value
    return found


_WHOLE = re.compile(r"[+-]?[0-9]+")


class Integer(click.types.IntParamType):
    """An integer in plain digits: Python's own parser also takes 1_000 and digits of other scripts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return int(super().convert(value, param, ctx))


class Whole(click.IntRange):
    """The same in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(super().convert(Integer().convert(value, param, ctx), param, ctx))


class Seconds(click.FloatRange):
    """A number of seconds in a range, in plain digits. NaN would be in none: a wait for it would never end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and not re.fullmatch(
            r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value
        ):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return float(super().convert(value, param, ctx))


class Name(click.ParamType[str]):
    """The name of a topic or group; a shell completes it with those of the cluster."""

    def __init__(self, what: str, names: Callable[[Cluster], Sequence[str]]) -> None:
        self.name = what
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        settings = ctx.find_object(Settings) or Settings()
        try:
            names = self._names(settings.cluster)
        except MillstreamError:  # errors would disturb a shell's completion
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _topics(cluster: Cluster) -> list[str]:
    from millstream.topics import list_topics

    return [topic.name for topic in list_topics(cluster, internal=True)]


def _groups(cluster: Cluster) -> list[str]:
    from millstream.groups import list_groups

    return [group.group for group in list_groups(cluster)]


TOPIC = Name("topic", _topics)
GROUP = Name("group", _groups)
