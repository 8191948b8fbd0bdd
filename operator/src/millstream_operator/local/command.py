"""`millstream local up | status | down`: Millstream on this machine, without Kubernetes.

Exit status: 0 all is as the manifests say (loads may wait for records, or for Java); 1 something went wrong with a
resource; 2 the manifests or options cannot be taken, and nothing was changed; 130 interrupted.

What runs the commands (kafka-python, the operator's reconciles) is imported when one is run, so that
`millstream --help` is quick.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .runtime import Outcome, Reporter, Snapshot

DATA = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=".millstream",
    show_default=True,
    help="Folder for data, logs and state.",
)


@click.group()
def local() -> None:
    """Run what manifests ask for on this machine, without Kubernetes."""


@local.command()
@click.option(
    "-f",
    "--filename",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of manifests, or a file.",
)
@DATA
def up(folder: Path, data: Path) -> None:
    """Make what the manifests of a folder ask for so; again after every change.

    They are the manifests that `kubectl apply -f` takes. All are validated before anything is changed.
    """
    from .runtime import LocalRuntime

    with _errors(), _reporter() as reporter:
        outcome = LocalRuntime(data, reporter).up(folder)
    for line in _next_steps(outcome, data):
        click.echo(line)
    if outcome.failures:
        sys.exit(1)


@local.command()
@DATA
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(data: Path, output: str) -> None:
    """Show the resources and processes of a data folder."""
    from .runtime import LocalRuntime

    with _errors():
        snapshot = LocalRuntime(data).status()
    if output == "json":
        click.echo(json.dumps(snapshot.to_json(), indent=2, ensure_ascii=False))
    else:
        _print_tables(snapshot)


@local.command()
@DATA
@click.option(
    "--delete-data", is_flag=True, help="Delete the data folder too: records, tables, logs and state."
)
@click.option("--yes", "-y", is_flag=True, help="With --delete-data: do not ask.")
def down(data: Path, delete_data: bool, yes: bool) -> None:
    """Stop the processes; data stays, and `up` goes on where it was."""
    from .runtime import LocalRuntime, Reporter

    if delete_data and not yes and sys.stdin.isatty():
        click.confirm(f"Delete all records, tables, logs and state in {data}?", abort=True)
    with _errors():
        stopped = LocalRuntime(data, Reporter(say=click.echo)).down(delete_data=delete_data)
    if not stopped:
        click.echo("nothing was running")
    click.echo(f"the data in {data} is deleted" if delete_data else f"data stays in {data}")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """What a user did wrong is a line on stderr, never a stack trace."""
    from .manifests import ManifestError
    from .processes import StartFailed
    from .state import StateError

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)  # a load's Spark must not outlive this command
    try:
        yield
    except ManifestError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        click.echo("nothing was changed", err=True)
        sys.exit(2)
    except StateError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except StartFailed as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("interrupted; `up` again goes on from here", err=True)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _reporter() -> Iterator[Reporter]:
    """Plain lines; a progress bar for loads on a terminal."""
    from .runtime import Reporter

    if not sys.stdout.isatty():
        yield Reporter(say=click.echo)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(run: str, done: int, total: int) -> None:
            if run not in tasks:
                tasks[run] = bars.add_task(run, total=total)
            bars.update(tasks[run], completed=done)
            if done >= total:
                bars.remove_task(tasks.pop(run))

        yield Reporter(
            say=lambda line: bars.console.print(line, markup=False, highlight=False), progress=progress
        )


def _next_steps(outcome: Outcome, data: Path) -> Iterator[str]:
    bootstraps = {
        (resource["metadata"]["namespace"], resource["metadata"]["name"]): resource["status"]["bootstrap"]
        for resource in outcome.resources
        if resource["kind"] == "Cluster" and resource.get("status", {}).get("bootstrap")
    }
    if not bootstraps:
        return
    option = "" if str(data) == ".millstream" else f" --data {data}"
    yield ""
    for (_, name), bootstrap in bootstraps.items():
        yield f"bootstrap of {name}: {bootstrap}"
    yield "next:"
    for resource in outcome.resources:
        if resource["kind"] == "Topic":
            reference = resource["spec"]["clusterRef"]
            cluster = (reference.get("namespace") or resource["metadata"]["namespace"], reference["name"])
            if cluster in bootstraps:
                topic = resource["spec"].get("topicName") or resource["metadata"]["name"]
                yield f"  millstream produce {topic} --bootstrap {bootstraps[cluster]}"
                yield f"  millstream consume {topic} --bootstrap {bootstraps[cluster]}"
                break
    yield f"  millstream local status{option}"
    yield f"  millstream local down{option}"


def _print_tables(snapshot: Snapshot) -> None:
    if not snapshot.resources:
        click.echo(
            f"nothing is in {snapshot.data}; `millstream local up -f DIR` starts what manifests ask for"
        )
        return
    rows = []
    for resource in snapshot.resources:
        conditions: list[dict[str, str]] = resource.get("status", {}).get("conditions") or []
        ready = next((condition for condition in conditions if condition["type"] == "Ready"), {})
        shown = [ready.get("status", "Unknown"), _summary(resource), ready.get("message", "")]
        rows.append([resource["kind"], resource["metadata"]["name"], *shown])
    _print_table(["KIND", "NAME", "READY", "IS", "MESSAGE"], rows)
    click.echo()
    processes = [
        [daemon["name"], str(daemon["pid"]), "yes" if daemon["running"] else "no", daemon["address"]]
        for daemon in snapshot.daemons
    ]
    _print_table(["PROCESS", "PID", "RUNS", "ADDRESS"], processes)


def _summary(resource: dict[str, Any]) -> str:
    status = resource.get("status", {})
    summaries: dict[str, Callable[[], str]] = {
        "Cluster": lambda: status.get("bootstrap", ""),
        "Topic": lambda: f"{status.get('partitions', 0)} partitions, {status.get('sizeBytes', 0):,} bytes",
        "ConsumerGroup": lambda: f"{status.get('state', '')}, {_lag(status)}",
        "MirrorMaker": lambda: f"{status.get('topics', 0)} topics, {_lag(status)}",
        "BatchLoad": lambda: _run(status.get("lastRun", {})),
    }
    return summaries[resource["kind"]]()


def _lag(status: dict[str, Any]) -> str:
    records = status.get("lag", {}).get("records")
    return "lag unknown" if records is None else f"lag {records:,} records"


def _run(run: dict[str, Any]) -> str:
    if not run:
        return "no run"
    rows = f", {run['rows']:,} rows" if run.get("rows") is not None else ""
    return f"{run['name']} {run['state']}{rows}"


def _print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
