"""`millstream`: topics, records, groups and configuration of a cluster, from the command line.

The commands are in `commands`, a module for each group. Other packages add commands by entry points of the group
`millstream.commands`; `local` comes from the operator.

Results go to stdout, as tables or JSON (``--output``); errors go to stderr, one line each: what is wrong, then what to
do next. Exit status: 0 success; 1 failure, with the reason in the line, or stdout is closed; 2 the command line, the
manifests or the input are invalid; 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
from importlib.metadata import EntryPoint, entry_points

import click
from click.exceptions import NoArgsIsHelpError, NoSuchCommand

from millstream import __version__, streams
from millstream.errors import MillstreamError
from millstream.options import Settings, common
from millstream.output import printable

COMMANDS = "millstream.commands"
OWN = {
    "audit": "audit",
    "cluster": "cluster",
    "completion": "completion",
    "config": "config",
    "consume": "records:consume_command",
    "doctor": "doctor",
    "group": "group",
    "mirror": "mirror",
    "produce": "records:produce_command",
    "stray": "stray",
    "top": "top",
    "topic": "topic",
    "transaction": "transaction",
}
"""Each command's module, and its name there if it has another."""
FAILED, USAGE, INTERRUPTED = 1, 2, 130


class Commands(click.Group):
    """Our commands and those of other packages, each imported on demand."""

    def _others(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=COMMANDS)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*OWN, *self._others()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if place := OWN.get(cmd_name):
            module, _, name = place.partition(":")
            command = getattr(importlib.import_module(f"{COMMANDS}.{module}"), name or module)
        elif other := self._others().get(cmd_name):
            command = other.load()
        else:
            return None
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown command is compared with all there are, not only with imported ones."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from error

    def invoke(self, ctx: click.Context) -> None:
        """Run the command, and raise the exceptions that `main` handles, not click's."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except MillstreamError as error:
            raise Ended(error.naming(ctx.ensure_object(Settings).options), error.exit_status) from error
        except KeyboardInterrupt:
            raise Ended("interrupted", INTERRUPTED) from None
        except OSError as error:
            raise Ended(_output_lost(error), FAILED) from None


class Ended(click.ClickException):
    """A line for stderr, and an exit status."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="millstream")
@common
@click.pass_context
def cli(context: click.Context) -> None:
    """Topics, records, groups and configuration of a Millstream or Kafka cluster."""
    context.ensure_object(Settings)


def main() -> None:
    """The entry point of `millstream`."""
    closed = streams.open_all()
    status = _say(closed, FAILED) if closed else run()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_DFL)  # everything is printed: another interrupt has no trace to print
    streams.end_stderr()
    sys.exit(status)


def run() -> int:
    """Run the command that sys.argv names; return its exit status."""
    try:
        status = cli.main(prog_name="millstream", standalone_mode=False)
        sys.stdout.flush()
    except MillstreamError as error:
        return _say(str(error), error.exit_status)
    except Ended as error:
        return _say(error.message, error.exit_status)
    except NoArgsIsHelpError as error:
        streams.say(error.format_message())
        return USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "millstream"
        return _say(f"{error.format_message().rstrip('.')}: see `{path} --help`", USAGE)
    except click.ClickException as error:  # including other packages' errors: a line for each problem
        return _say(error.format_message(), error.exit_code)
    except click.Abort:
        return _say("interrupted", INTERRUPTED)
    except OSError as error:
        return _say(_output_lost(error), FAILED)
    return status if isinstance(status, int) else 0


def _say(message: str, status: int) -> int:
    for line in message.splitlines():
        streams.say(f"millstream: {printable(line)}")
    return status


def _output_lost(error: OSError) -> str:
    """A failed write to stdout, with the command's progress."""
    notes = "".join(f": {note}" for note in getattr(error, "__notes__", ()))
    if error.filename is not None:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}{notes}"
    streams.end_stdout()
    if error.errno == errno.EPIPE:
        return f"the reader of the output has gone{notes}"
    return f"the output cannot be written ({(error.strerror or str(error)).lower()}){notes}"
