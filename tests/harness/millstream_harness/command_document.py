"""Writes docs/command.md: every command of `millstream`, from its own parser.

make docs/command.md
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from millstream.cli import cli

INTRODUCTION = """\
# The command `millstream`

Written by `make docs/command.md` from the command's parser; a test holds it to the parser. `millstream COMMAND --help`
says the same.

It works on any Kafka cluster: on Millstream's and on Apache Kafka. `--bootstrap` (`-b`) or the environment variable
`MILLSTREAM_BOOTSTRAP` names the cluster, `localhost:9092` if neither does. `--output json` (`-o json`) prints one line
of JSON instead of a table, with the field names of the custom resources. Both go before or after the command.

```sh
export MILLSTREAM_BOOTSTRAP=localhost:9092
millstream topic create flights --partitions 6 --config retention.ms=86400000
millstream produce flights --key-separator '\\t' < flights.tsv
millstream consume flights --group delay-watch --max 10
millstream group describe delay-watch
millstream group reset delay-watch --to-datetime 2026-11-22T09:30:00Z --dry-run
```

**Changes.** `--dry-run` lets the brokers validate a change and shows what it would do. A change that loses data or
cannot be undone asks for confirmation on a terminal; in a script it needs `--yes`, and without it fails before anything
is changed.

**Errors** go to stderr, one line each: what is wrong, then what to do next.

| exit status | |
|---:|---|
| 0 | done |
| 1 | failed: the line says why, and how far it came; also when stdout is closed |
| 2 | the command line, the manifests or the input are wrong |
| 130 | interrupted (Ctrl-C or SIGTERM): the line says what was done; a second Ctrl-C ends `produce` at once |

**Completion.** `millstream completion bash` (or `zsh`, `fish`) prints a script that completes commands, options, and
the names of the cluster's topics and groups; its `--help` says where to put it.

Manifests on this machine (`millstream local`): [local.md](local.md).

## Secured clusters

`--config FILE` (or the environment variable `MILLSTREAM_CONFIG`) names a file of client properties: those of Kafka's
Java clients, or librdkafka's. It goes before or after the command. `topic create` and `topic alter`, whose `--config`
is the topic's, take `--command-config FILE`, as every command does, or `--config FILE` before the command.

```properties
bootstrap.servers=kafka.example:9093
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=/etc/kafka/ca.crt
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="alice" password="...";
```

librdkafka's file has `ssl.ca.location`, `sasl.username` and `sasl.password` instead. Trust stores are PEM files, key
stores PEM or PKCS#12. A backslash continues a line at its end, except in passwords. Elsewhere it is an ordinary
character, except in `sasl.jaas.config` and in certificates, where it escapes as in Java. Serializers and other names of
Java classes have no effect; any other setting that librdkafka does not know is an error. The file may contain a
password, so let no one else read it (`chmod 600`). `millstream user config` prints it for a [User](resources/user.md).

A profile is such a file in `~/.config/millstream`: `--profile prod` (or `MILLSTREAM_PROFILE`) is
`~/.config/millstream/prod.properties`. The cluster is that of `--bootstrap`, otherwise the file's `bootstrap.servers`,
otherwise that of `MILLSTREAM_BOOTSTRAP`. `millstream doctor --config FILE` says which setting does not fit.
"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_commands(cli, ["millstream"])]) + "\n"


def _commands(group: click.Group, path: list[str]) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield f"## `{' '.join([*path, name])}`"
            yield ""
            yield from _commands(command, [*path, name])
        else:
            yield from _command(command, [*path, name])


def _command(command: click.Command, path: list[str]) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path))
    yield f"{'##' if len(path) == 2 else '###'} `{' '.join(path)}`"
    yield ""
    yield "```"
    yield " ".join([*path, *command.collect_usage_pieces(context)])
    yield "```"
    yield ""
    yield _text(command.help or "")
    yield ""
    shared = {"--help"}
    if path[1] not in ("local", "user"):
        shared |= {"--bootstrap", "--command-config", "--profile", "--output"}
    rows = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not shared.intersection(parameter.opts)
    ]
    if rows:
        yield "| option | |"
        yield "|---|---|"
        yield from (f"| `{_cell(row[0])}` | {_cell(row[1])} |" for row in rows if row)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _text(text: str) -> str:
    r"""A command's help as Markdown; a paragraph after \b keeps its lines."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append("```\n" + paragraph.removeprefix("\b\n") + "\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    sys.stdout.write(page())
