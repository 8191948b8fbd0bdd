"""`make demo`: a year of flights through the log, end to end and without Kubernetes.

    up        `millstream local up` makes of this folder's manifests a broker, a topic, a group, a load that waits
    traffic   all flights are published, and consumed by a group of two
    load      `millstream local up` again: there are enough records now, so Spark loads them into Parquet
    check     published = consumed = loaded, for each carrier
    report    demo-out/report.html and report.png

Everything is stopped at the end, however that comes. Exit status: 0 if all held, 1 if not, 130 interrupted.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import report
import traffic
from flights import ROWS, airlines, events
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
OUT = Path("demo-out")
DATA = OUT / "data"
TABLE = DATA / "volumes" / "lake" / "flights"
MILLSTREAM = str(Path(sys.executable).parent / "millstream")
NO_JAVA = "RunnerNotAvailable"


class DemoFailed(Exception):
    """Something did not hold; one line."""


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    timings: dict[str, float] = {}
    fresh()
    try:
        with timed(timings, "start"):
            say("starting what examples/flights asks for")
            local("up", "-f", str(HERE))
        with timed(timings, "publish and consume"):
            say(f"publishing {ROWS:,} flights, consuming them in a group of {traffic.CONSUMERS}")
            moved = publish_and_consume(bootstrap())
        with timed(timings, "load"):
            say("loading them with Spark")
            local("up", "-f", str(HERE))
            loaded = load_result()
        with timed(timings, "check and report"):
            counts = report.Counts(moved.published, moved.consumed, loaded, airlines())
            check(counts)
            written = report.write(OUT, counts, moved, timings)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (DemoFailed, traffic.MillstreamError, traffic.KafkaException, OSError, RuntimeError) as error:
        say(f"failed: {error}")
        return 1
    finally:
        stop()
    say(f"report: {written}")
    if loaded is None:
        say(f"published = consumed = {ROWS}, not loaded (no Java 17)")
    else:
        say(f"published = consumed = loaded = {ROWS}")
    return 0


def publish_and_consume(bootstrap: str) -> traffic.Traffic:
    with bars("published", "consumed") as show:
        moved = traffic.run(bootstrap, "flights", "delay-watch", events(), lambda *counts: show(counts))
    rates = [count / seconds for count, seconds in ((ROWS, moved.publish_s), (ROWS, moved.consume_s))]
    say(f"published in {moved.publish_s:.1f} s ({rates[0]:,.0f}/s), consumed after {moved.consume_s:.1f} s")
    return moved


def bootstrap() -> str:
    return str(resource("Cluster")["status"]["bootstrap"])


def load_result() -> Counter[str] | None:
    """Rows of the table by carrier; None when there is no Java to load them with."""
    status = resource("BatchLoad").get("status", {})
    if (run := status.get("lastRun", {})).get("state") == "Succeeded":
        return report.table_counts(TABLE)
    ready: dict[str, str] = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), {})
    if ready.get("reason") == NO_JAVA:
        return None
    raise DemoFailed(f"the load did not succeed: {run.get('error') or ready.get('message')}")


def check(counts: report.Counts) -> None:
    """Published = consumed = loaded, overall and for each carrier."""
    for what, count in (
        ("published", counts.published),
        ("consumed", counts.consumed),
        ("loaded", counts.loaded),
    ):
        if count is None:
            continue
        if count.total() != ROWS:
            raise DemoFailed(f"{what} {count.total():,} of {ROWS:,} flights")
        for carrier in counts.published.keys() | count.keys():
            if count[carrier] != counts.published[carrier]:
                raise DemoFailed(
                    f"{what} {count[carrier]:,} of {counts.published[carrier]:,} flights of {carrier}"
                )


def local(*arguments: str) -> None:
    """`millstream local …` over our data folder; what it says is shown."""
    # In a session of its own, so that Ctrl-C reaches it once and from us: it has a Spark to stop.
    with subprocess.Popen(
        [MILLSTREAM, "local", *arguments, "--data", str(DATA)], start_new_session=True
    ) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if status != 0:
        raise DemoFailed(f"millstream local {arguments[0]} ended with status {status}")


def resource(kind: str) -> dict[str, Any]:
    """The one resource of a kind, as `millstream local status` has it."""
    command = [MILLSTREAM, "local", "status", "--data", str(DATA), "--output", "json"]
    status = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found: dict[str, Any] = next(one for one in status["resources"] if one["kind"] == kind)
    return found


def fresh() -> None:
    """An empty output folder; what a demo that was killed left running is stopped first."""
    if DATA.exists():
        stop()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()


def stop() -> None:
    """Stop all processes, not to be interrupted."""
    before = [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)]
    if DATA.exists():
        command = [MILLSTREAM, "local", "down", "--data", str(DATA)]
        subprocess.run(command, stdout=subprocess.DEVNULL, start_new_session=True)
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
def bars(*names: str) -> Iterator[Callable[[tuple[int, ...]], None]]:
    """A bar each on a terminal; elsewhere a plain line for every quarter of the way."""
    if sys.stdout.isatty():
        columns = (
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, transient=True) as progress:
            tasks = [progress.add_task(name, total=ROWS) for name in names]

            def draw(counts: tuple[int, ...]) -> None:
                for task, count in zip(tasks, counts, strict=True):
                    progress.update(task, completed=count)

            yield draw
        return
    said = 0

    def tell(counts: tuple[int, ...]) -> None:
        nonlocal said
        if (quarters := 4 * min(counts) // ROWS) > said:
            said = quarters
            say(", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True)))

    yield tell


if __name__ == "__main__":
    sys.exit(main())
