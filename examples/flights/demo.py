"""`make demo`: a year of flights through the log, end to end and without Kubernetes.

    up        apply this folder's manifests: a broker, a topic, a group, a load that waits
    traffic   publish all flights, while a group of two consumes them
    up        again: there are enough records now, so Spark loads them into Parquet
    check     published = consumed = loaded, for each carrier
    cluster   the same through three brokers, one of which is killed meanwhile (replicated.py; needs Java)
    report    demo-out/report.html

Everything is stopped at the end, in any case. Exit status: 0 if all checks passed, 1 if not, 130 interrupted.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaException
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import replicated
import report
import traffic
from flights import ROWS, airlines, events
from millstream.errors import MillstreamError
from millstream_operator.local.processes import StartFailed
from millstream_operator.local.runtime import LocalRuntime, Outcome, Reporter
from millstream_operator.local.state import StateError

HERE = Path(__file__).parent
OUT = Path("demo-out")
DATA = OUT / "data"
CLUSTER = OUT / "cluster"
TABLE = DATA / "volumes" / "lake" / "flights"
NO_JAVA = "RunnerNotAvailable"


class DemoFailed(Exception):
    """A check failed; one line."""


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    timings: dict[str, float] = {}
    try:
        fresh()
        with timed(timings, "start"):
            resources = up()
        with timed(timings, "publish and consume"):
            moved = publish_and_consume(resources["Cluster"]["status"]["bootstrap"])
        with timed(timings, "load"):
            resources = up()
            loaded = rows_loaded(resources["BatchLoad"]["status"])
        counts = report.Counts(moved.published, moved.consumed, loaded, moved.cancelled, airlines())
        check(counts)
        with timed(timings, "three brokers"):
            survived = through_three(counts.published)
        written = report.write(OUT, report.Run(counts, moved, survived, timings))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (
        DemoFailed,
        MillstreamError,
        KafkaException,
        StartFailed,
        StateError,
        OSError,
        RuntimeError,
    ) as error:
        say(f"failed: {error}")
        return 1
    finally:
        stop()
    say(f"report: {written}")
    say(
        f"published = consumed = {f'loaded = {ROWS}' if loaded is not None else f'{ROWS}, not loaded (no Java 17)'}"
    )
    return 0


def up() -> dict[str, Any]:
    """Apply this folder's manifests; return the resources by kind."""
    say("millstream local up -f examples/flights --data demo-out/data")
    with bars(["loaded"]) as show:
        reporter = Reporter(
            say=lambda line: say(f"  {line}"),
            progress=lambda at: show([at.records if at.step in ("starting Spark", "reading") else at.total]),
        )
        outcome: Outcome = LocalRuntime(DATA, reporter).up(HERE)
    for resource, problem in outcome.failures.items():
        raise DemoFailed(f"{resource}: {problem}")
    return {resource["kind"]: resource for resource in outcome.resources}


def publish_and_consume(bootstrap: str) -> traffic.Traffic:
    say(f"{traffic.CONSUMERS} consumers of the group delay-watch wait while {ROWS:,} flights are published")
    with bars(["published", "consumed"]) as show:
        moved = traffic.run(bootstrap, "flights", "delay-watch", events(), lambda *counts: show(counts))
    rate = ROWS / moved.publish_s
    say(
        f"published in {moved.publish_s:.1f} s ({rate:,.0f} a second), all consumed after {moved.consume_s:.1f} s"
    )
    cancelled = moved.cancelled.total()
    say(f"of {ROWS:,} flights {ROWS - cancelled:,} left and {cancelled:,} were cancelled")
    return moved


def rows_loaded(status: dict[str, Any]) -> Counter[str] | None:
    """Rows of the table by carrier; None without Java to load them, which `up` has reported."""
    if (run := status.get("lastRun", {})).get("state") == "Succeeded":
        return report.table_counts(TABLE)
    ready: dict[str, str] = next(one for one in status["conditions"] if one["type"] == "Ready")
    if ready["reason"] == NO_JAVA:
        return None
    raise DemoFailed(f"the load did not succeed: {run.get('error') or ready['message']}")


def check(counts: report.Counts) -> None:
    """Published = consumed = loaded, overall and for each carrier."""
    stages = {"published": counts.published, "consumed": counts.consumed, "loaded": counts.loaded}
    for stage, count in stages.items():
        if count is None:
            continue
        if count.total() != ROWS:
            raise DemoFailed(f"{stage} {count.total():,} of {ROWS:,} flights")
        for carrier in counts.published.keys() | count.keys():
            if count[carrier] != counts.published[carrier]:
                raise DemoFailed(
                    f"{stage} {count[carrier]:,} of {counts.published[carrier]:,} flights of {carrier}"
                )


def through_three(expected: Counter[str]) -> replicated.Survived | None:
    """The flights once more, through a cluster that loses a broker meanwhile; None without Java."""
    if (problem := replicated.lacking()) is not None:
        say(f"three brokers: left out: their ZooKeeper needs Java: {problem}")
        return None
    say("three brokers: millstream local down --data demo-out/data")
    LocalRuntime(DATA).down()  # the manifests of both clusters name port 9092
    say("three brokers: millstream local up -f examples/cluster --data demo-out/cluster")
    with bars(["acknowledged"]) as show:
        survived = replicated.run(LocalRuntime(CLUSTER), events(), lambda count: show([count]))
    for what, found in (("acknowledged", survived.published), ("read", survived.read)):
        if found != expected:
            raise DemoFailed(f"three brokers: {what} {found.total():,} of {ROWS:,} flights")
    say(
        f"three brokers: broker {survived.broker} was killed and started again; the longest wait for an "
        f"acknowledgement was {survived.silence_s:.1f} s; all {ROWS:,} flights are there, none twice"
    )
    return survived


def fresh() -> None:
    """Make the output folder empty, after stopping what a killed demo left running."""
    stop()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()


def stop() -> None:
    """Stop all processes, uninterruptibly."""
    before = [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)]
    for folder in (DATA, CLUSTER):
        LocalRuntime(folder).down()
    for one, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(one, handler)


def interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def say(line: str) -> None:
    print(f"demo: {line}", flush=True)


@contextmanager
def timed(timings: dict[str, float], step: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    timings[step] = time.monotonic() - begun


@contextmanager
def bars(names: list[str]) -> Iterator[Callable[[Any], None]]:
    """Progress bars on a terminal; elsewhere a plain line for every quarter."""
    if sys.stdout.isatty():
        columns = (
            TextColumn("{task.description:>15}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, transient=True) as progress:
            tasks = [progress.add_task(name, total=ROWS, visible=False) for name in names]

            def draw(counts: Any) -> None:
                for task, count in zip(tasks, counts, strict=True):
                    progress.update(task, completed=count, visible=True)

            yield draw
        return
    said = 0

    def tell(counts: Any) -> None:
        nonlocal said
        if (quarters := 4 * min(counts) // ROWS) > said:
            said = quarters
            say("  " + ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True)))

    yield tell


if __name__ == "__main__":
    sys.exit(main())
