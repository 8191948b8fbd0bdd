"""`millstream`: topics, records and groups of a cluster at a glance.

    millstream topic list | describe TOPIC
    millstream produce TOPIC          lines from stdin or a file
    millstream consume TOPIC          lines to stdout
    millstream group list | describe GROUP

Other packages add commands by entry points of the group `millstream.commands`; `local` comes from the operator.
Results go to stdout, as tables or JSON (``--output``), errors to stderr, a line each. Exit status: 0 done, 1 failed,
2 not a command that there is, 130 interrupted.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from typing import Any, BinaryIO, Literal, NoReturn, TypeVar

import click
from rich.console import Console
from rich.table import Table

from millstream import __version__
from millstream.connection import DEFAULT_BOOTSTRAP, Cluster
from millstream.errors import BadInput, MillstreamError
from millstream.groups import describe_group, list_groups
from millstream.records import Codec, Record, consume, produce
from millstream.topics import describe_topic, list_topics

COMMANDS = "millstream.commands"
Command = TypeVar("Command", bound=Callable[..., Any])


class Settings:
    """The options that every command has, given before or behind its name."""

    def __init__(self) -> None:
        self.bootstrap = os.environ.get("MILLSTREAM_BOOTSTRAP") or DEFAULT_BOOTSTRAP
        self.output = "table"

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.bootstrap)


def common(command: Command) -> Command:
    """``--bootstrap`` and ``--output``."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            setattr(context.ensure_object(Settings), str(parameter.name), value)

    command = click.option(
        "--output", "-o", type=click.Choice(["table", "json"]), expose_value=False, callback=keep,
        help="How results are printed; a table unless said.",
    )(command)  # fmt: skip
    return click.option(
        "--bootstrap", "-b", metavar="HOST:PORT", expose_value=False, callback=keep,
        help=f"Where the cluster is; several with commas between. [env: MILLSTREAM_BOOTSTRAP; {DEFAULT_BOOTSTRAP}]",
    )(command)  # fmt: skip


class Commands(click.Group):
    """Our commands and those of other packages, each imported when it is needed."""

    def _others(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=COMMANDS)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._others()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if found := super().get_command(ctx, cmd_name):
            return found
        if other := self._others().get(cmd_name):
            command = other.load()
            assert isinstance(command, click.Command)
            return command
        return None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="millstream")
@common
@click.pass_context
def cli(context: click.Context) -> None:
    """Topics, records and groups of a Millstream or Kafka cluster."""
    context.ensure_object(Settings)


@cli.group()
@common
def topic() -> None:
    """Topics and what they hold."""


@topic.command("list")
@click.option("--internal", is_flag=True, help="The brokers' own topics too.")
@common
@click.pass_obj
def topic_list(settings: Settings, internal: bool) -> None:
    """All topics."""
    found = list_topics(settings.cluster, internal=internal)
    _print(
        settings,
        [asdict(one) for one in found],
        ("TOPIC", "PARTITIONS", "REPLICATION"),
        [(one.name, one.partitions, one.replication_factor) for one in found],
    )


@topic.command("describe")
@click.argument("name", metavar="TOPIC")
@common
@click.pass_obj
def topic_describe(settings: Settings, name: str) -> None:
    """One topic: its partitions with their offsets, and its configuration."""
    found = describe_topic(settings.cluster, name)
    if settings.output == "table":
        click.echo(f"topic {found.name}, id {found.topic_id}")
        for key, value in found.config.items():
            click.echo(f"  {key}={value}")
    _print(
        settings,
        asdict(found),
        ("PARTITION", "LEADER", "REPLICAS", "ISR", "EARLIEST", "LATEST", "RECORDS"),
        [
            (
                p.partition,
                p.leader,
                _ids(p.replicas),
                _ids(p.isr),
                p.earliest,
                p.latest,
                p.latest - p.earliest,
            )
            for p in found.partitions
        ],
    )


@cli.group()
@common
def group() -> None:
    """Consumer groups and how far they are."""


@group.command("list")
@common
@click.pass_obj
def group_list(settings: Settings) -> None:
    """All groups."""
    found = list_groups(settings.cluster)
    _print(
        settings,
        [asdict(one) for one in found],
        ("GROUP", "STATE"),
        [(one.group, one.state) for one in found],
    )


@group.command("describe")
@click.argument("name", metavar="GROUP")
@common
@click.pass_obj
def group_describe(settings: Settings, name: str) -> None:
    """One group: its state, its members, and its lag by partition."""
    found = describe_group(settings.cluster, name)
    if settings.output == "table":
        click.echo(f"group {found.group}, {found.state}, {len(found.members)} members, lag {found.lag:,}")
        if found.members:
            _table(
                ("MEMBER", "HOST", "PARTITIONS"),
                [(member.client_id, member.host, ", ".join(member.partitions)) for member in found.members],
            )
    _print(
        settings,
        asdict(found),
        ("TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG", "MEMBER"),
        [
            (
                p.topic,
                p.partition,
                "-" if p.committed < 0 else p.committed,
                p.latest,
                p.lag,
                p.client_id or "-",
            )
            for p in found.partitions
        ],
    )


@cli.command("produce")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--file", "-f", "source", type=click.File("rb"), default="-", help="Lines to read; stdin unless said."
)
@click.option(
    "--key-separator", metavar="TEXT", help=r"What stands between key and value in a line, such as '\t'."
)
@click.option(
    "--codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none", show_default=True,
    help="How records are compressed.",
)  # fmt: skip
@click.option("--partition", type=click.IntRange(0), help="Into this partition, whatever the keys.")
@common
@click.pass_obj
def produce_command(
    settings: Settings,
    name: str,
    source: BinaryIO,
    key_separator: str | None,
    codec: Codec,
    partition: int | None,
) -> None:
    """Append lines to a topic, a record each."""
    separator = _separator(key_separator)
    produced = produce(settings.cluster, name, _records(source, separator), codec=codec, partition=partition)
    if settings.output == "json":
        by_partition = [{"partition": number, "records": count} for number, count in sorted(produced.items())]
        click.echo(json.dumps({"topic": name, "records": sum(produced.values()), "partitions": by_partition}))
    else:
        click.echo(f"{sum(produced.values()):,} records to {name}")


@cli.command("consume")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--group", "-g", "group_id", metavar="GROUP", help="As a member of this group, which keeps the offsets."
)
@click.option(
    "--from", "start", metavar="earliest|latest|OFFSET", default="earliest", show_default=True,
    help="Where to start; with a group, where it has no offset.",
)  # fmt: skip
@click.option("--max", "maximum", type=click.IntRange(1), help="End after so many records.")
@click.option("--follow", "-F", is_flag=True, help="Wait for more at the end.")
@click.option(
    "--key-separator", metavar="TEXT", help=r"Print the key too, with this between it and the value."
)
@common
@click.pass_obj
def consume_command(
    settings: Settings,
    name: str,
    group_id: str | None,
    start: str,
    maximum: int | None,
    follow: bool,
    key_separator: str | None,
) -> None:
    """Print the records of a topic, a line each, to its end."""
    separator = _separator(key_separator)
    signal.signal(signal.SIGTERM, _interrupt)  # a group's member leaves it, its offsets committed
    out = sys.stdout.buffer
    cluster, begin = settings.cluster, _start(start)
    found = consume(cluster, name, group=group_id, start=begin, maximum=maximum, follow=follow)
    with closing(found) as records:
        for record in records:
            out.write(_json_line(record) if settings.output == "json" else _text_line(record, separator))
            if follow:
                out.flush()
    out.flush()


def main() -> None:
    """What `millstream` runs."""
    try:
        cli()
    except MillstreamError as error:
        click.echo(f"millstream: {error}", err=True)
        sys.exit(1)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _start(text: str) -> int | Literal["earliest", "latest"]:
    match text:
        case "earliest" | "latest":
            return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise BadInput(f'--from: "{text}" is not allowed', "earliest, latest or an offset")


def _separator(text: str | None) -> bytes | None:
    if text == "":
        raise BadInput('--key-separator: "" is not allowed', r"at least one character, such as '\t'")
    escapes = {r"\t": "\t", r"\n": "\n", r"\0": "\0", r"\\": "\\"}
    return None if text is None else escapes.get(text, text).encode()


def _records(source: Iterable[bytes], separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    for number, line in enumerate(source, start=1):
        line = line.removesuffix(b"\n")
        if separator is None:
            yield None, line
            continue
        key, found, value = line.partition(separator)
        if not found:
            raise BadInput(
                f"line {number}: there is no key separator {separator.decode()!r} in it",
                f"lines before it that are in the topic: {number - 1:,}",
            )
        yield key, value


def _text_line(record: Record, separator: bytes | None) -> bytes:
    value = (record.value or b"") + b"\n"
    return value if separator is None else (record.key or b"") + separator + value


def _json_line(record: Record) -> bytes:
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
    }
    if record.headers:
        shown["headers"] = [{"name": name, **_text("value", value)} for name, value in record.headers]
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(name: str, content: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON: text if they are, else base64 under a name that says so."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content).decode()}


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _print(settings: Settings, shown: Any, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    if settings.output == "json":
        click.echo(json.dumps(_camel(shown), ensure_ascii=False))
    else:
        _table(head, rows)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(head):
        number = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000  # for whoever reads it, lines are not cut
    console.print(table)


def _camel(shown: Any) -> Any:
    """Field names as in our resources: clientId."""
    if isinstance(shown, dict):
        return {
            _camel_name(name): value if name == "config" else _camel(value) for name, value in shown.items()
        }
    if isinstance(shown, list | tuple):
        return [_camel(one) for one in shown]
    return shown


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
