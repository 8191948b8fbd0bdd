"""`millstream local up | status | delete | down`: Millstream on this machine, without Kubernetes.

Exit status: 0 everything is in its desired state (loads may wait for records, or for Java); 1 something is wrong
with a resource; 2 the manifests or options are invalid, and nothing was changed; 130 interrupted.

The modules behind the commands (the operator's reconciles) are imported when a command runs, so that
`millstream --help` is quick.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..models.words import count_of

if TYPE_CHECKING:
    from .runtime import Outcome, Reporter, Snapshot

DATA = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=".millstream",
    show_default=True,
    help="Folder for data, logs and state.",
)
FILES = click.option(
    "-f",
    "--filename",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of manifests, or a file.",
)


class Ended(click.ClickException):
    """Lines for stderr, which `millstream` prints as it prints every error, and an exit status."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # of this one


@click.group()
def local() -> None:
    """Run manifests on this machine, without Kubernetes."""


@local.command()
@FILES
@DATA
def up(folder: Path, data: Path) -> None:
    """Apply the manifests of a folder; run it again after every change.

    They are the manifests that `kubectl apply -f` takes. All are validated before anything is changed.
    """
    from .runtime import LocalRuntime

    with _errors(), _reporter() as reporter:
        outcome = LocalRuntime(data, reporter).up(folder)
    for line in _next_steps(outcome, data):
        click.echo(line)
    if outcome.failures:
        raise click.exceptions.Exit(1)


@local.command()
@DATA
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(data: Path, output: str) -> None:
    """Show the resources and processes of a data folder."""
    from .runtime import LocalRuntime, Reporter

    with _errors():
        snapshot = LocalRuntime(data, Reporter(say=lambda line: click.echo(line, err=True))).status()
    if output == "json":
        click.echo(json.dumps(snapshot.to_json(), indent=2, ensure_ascii=False))
    else:
        _print_tables(snapshot)


@local.command()
@FILES
@DATA
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def delete(folder: Path, data: Path, dry_run: bool, yes: bool) -> None:
    """Delete the resources that manifests name, as `kubectl delete -f` does.

    Deletes data only where a resource's deletionPolicy is Delete, and asks for confirmation first.
    """
    from .runtime import LocalRuntime, Reporter

    with _errors():
        runtime = LocalRuntime(data, Reporter(say=click.echo))
        doomed = runtime.doomed(folder)
        if dry_run:
            for key in doomed.resources:
                kind, _, name = key.split("/")
                click.echo(f"{kind} {name}: would be deleted")
            for words in doomed.data:
                click.echo(f"data that would be deleted: {words}")
            click.echo("nothing was changed (--dry-run)")
            return
        if doomed.data and not yes:
            _confirm("local delete", f"delete {', '.join(doomed.data)}", "--yes, or --dry-run")
        outcome = runtime.delete(folder, doomed)
    if outcome.failures:
        raise click.exceptions.Exit(1)


@local.command()
@DATA
@click.option(
    "--delete-data",
    is_flag=True,
    help="Also delete what is in the data folder: records, tables, logs and state.",
)
@click.option("--yes", "-y", is_flag=True, help="With --delete-data: do not ask for confirmation.")
def down(data: Path, delete_data: bool, yes: bool) -> None:
    """Stop all processes. Data stays; `up` continues from it."""
    from .runtime import LocalRuntime, Reporter

    runtime = LocalRuntime(data, Reporter(say=click.echo))
    if not delete_data and not runtime.store.exists:
        click.echo(
            f"there is no data folder {runtime.data}, so nothing was stopped: --data names another one"
        )
        return
    with _errors():
        if delete_data:
            runtime.check_owned()  # before the question, because an answer would change nothing
            if not yes:
                _confirm("local down", f"delete all records, tables, logs and state in {data}", "--yes")
        stopped = runtime.down(delete_data=delete_data)
    if not stopped:
        click.echo("nothing was running")
    click.echo(f"the data in {data} is deleted" if delete_data else f"data stays in {data}")


def _confirm(command: str, deed: str, options: str) -> None:
    """Ask before data is deleted; refuse without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Ended(
            f"{command}: would {deed}, and cannot ask for confirmation without a terminal: add {options}", 2
        )
    if not click.confirm(f"{deed[0].upper() + deed[1:]}?", err=True):
        raise Ended("nothing was changed", 1)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Print a user's mistake as a line on stderr, never as a stack trace; an interrupted command can be repeated."""
    from .manifests import ManifestError
    from .processes import StartFailed
    from .state import StateError

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # A load's Spark, and a broker that is not ready, must not outlive this command. `nohup` ignores SIGHUP.
    before = {
        number: signal.signal(number, interrupted)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    except ManifestError as error:
        raise Ended("\n".join([*map(str, error.problems), "nothing was changed"]), 2) from None
    except StateError as error:
        raise Ended(str(error), 2) from None
    except StartFailed as error:
        raise Ended(str(error), 1) from None
    except KeyboardInterrupt:
        raise Ended("interrupted: run the same command again to continue", 130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _reporter() -> Iterator[Reporter]:
    """Plain lines; a progress bar for loads on a terminal, elsewhere a line now and then."""
    from .runtime import Reporter
    from .spark import Progress as LoadProgress
    from .spark import Sparse

    if not sys.stdout.isatty():
        yield Reporter(say=click.echo, progress=Sparse(click.echo))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(at: LoadProgress) -> None:
            if at.run not in tasks:
                tasks[at.run] = bars.add_task(at.run, total=at.total)
            words = ", ".join(word for word in (at.step, at.stage) if word)
            bars.update(tasks[at.run], completed=at.records, description=f"{at.run} {words}")
            if not at.step:
                bars.remove_task(tasks.pop(at.run))

        yield Reporter(
            say=lambda line: bars.console.print(line, markup=False, highlight=False), progress=progress
        )


def _next_steps(outcome: Outcome, data: Path) -> Iterator[str]:
    bootstraps, closed = {}, set()
    for resource in outcome.resources:
        if resource["kind"] == "Cluster" and (status := resource.get("status", {})).get("bootstrap"):
            name = (resource["metadata"]["namespace"], resource["metadata"]["name"])
            bootstraps[name] = status["bootstrap"]
            closed |= {name} if "platform" in status else set()
    if not bootstraps:
        return
    option = "" if str(data) == ".millstream" else f" --data {data}"
    yield ""
    for (_, name), bootstrap in bootstraps.items():
        yield f"bootstrap of {name}: {bootstrap}"
    yield "next:"
    for resource in outcome.resources:
        if resource["kind"] == "User" and resource["spec"].get("authentication"):
            name, namespace = (resource["metadata"][key] for key in ("name", "namespace"))
            place = "" if namespace == "default" else f" --namespace {namespace}"
            yield f"  (umask 077; millstream user config {name}{place} --data {data} > {name}.properties)"
            break
    for resource in outcome.resources:
        if resource["kind"] == "Topic":
            reference = resource["spec"]["clusterRef"]
            cluster = (reference.get("namespace") or resource["metadata"]["namespace"], reference["name"])
            if cluster in bootstraps and cluster not in closed:
                topic = resource["spec"].get("topicName") or resource["metadata"]["name"]
                yield f"  millstream produce {topic} --bootstrap {bootstraps[cluster]}"
                yield f"  millstream consume {topic} --bootstrap {bootstraps[cluster]}"
                break
    yield f"  millstream local status{option}"
    yield f"  millstream local down{option}"


def _print_tables(snapshot: Snapshot) -> None:
    if not snapshot.resources:
        click.echo(f"nothing is in {snapshot.data}: `millstream local up -f DIR` applies manifests")
        return
    rows = []
    for resource in snapshot.resources:
        conditions: list[dict[str, str]] = resource.get("status", {}).get("conditions") or []
        ready = next((condition for condition in conditions if condition["type"] == "Ready"), {})
        shown = [ready.get("status", "Unknown"), _summary(resource), ready.get("message", "")]
        rows.append([resource["kind"], resource["metadata"]["name"], *shown])
    _print_table(["KIND", "NAME", "READY", "IS", "MESSAGE"], rows)
    for line in _warnings(snapshot.resources):
        click.echo(line)
    click.echo()
    processes = [
        [daemon["name"], str(daemon["pid"]), "yes" if daemon["running"] else "no", daemon["address"]]
        for daemon in snapshot.daemons
    ]
    _print_table(["PROCESS", "PID", "RUNS", "ADDRESS"], processes)
    if (secrets := snapshot.data / "users").exists():
        click.echo(f"\npasswords and certificates, which only you can read: {secrets}")


def _warnings(resources: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What needs attention although a resource is ready."""
    from ..models.conditions import ConditionType

    for resource in resources:
        for condition in resource.get("status", {}).get("conditions") or ():
            if (
                condition["type"] in (ConditionType.WARNING, ConditionType.STRAYS)
                and condition["status"] == "True"
            ):
                yield f"{resource['kind']} {resource['metadata']['name']}: {condition['message']}"


def _summary(resource: dict[str, Any]) -> str:
    status = resource.get("status", {})
    summaries: dict[str, Callable[[], str]] = {
        "Cluster": lambda: status.get("bootstrap", ""),
        "Topic": lambda: (
            f"{count_of(status['partitions'], 'partition')}, {count_of(status.get('sizeBytes', 0), 'byte')}"
            if "partitions" in status
            else ""
        ),
        "ConsumerGroup": lambda: ", ".join(filter(None, (status.get("state"), _lag(status)))),
        "MirrorMaker": lambda: f"{count_of(status.get('topics', 0), 'topic')}, {_lag(status)}",
        "BatchLoad": lambda: _run(status.get("lastRun", {})),
    }
    return summaries.get(resource["kind"], str)()


def _lag(status: dict[str, Any]) -> str:
    records = status.get("lag", {}).get("records")
    return "lag unknown" if records is None else f"lag {count_of(records, 'record')}"


def _run(run: dict[str, Any]) -> str:
    if not run:
        return "no run"
    rows = f", {count_of(run['rows'], 'row')}" if run.get("rows") is not None else ""
    corrupt = f", {run['corruptRecords']:,} corrupt" if run.get("corruptRecords") else ""
    return f"{run['name']} {run['state']}{rows}{corrupt}"


def _print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
