"""``make bench``: rounds of both brokers in turn, a table, results.json, plots and docs/performance.md.

In a round, each contender has its own process, one after the other: workloads that share a broker
run in it after a warm-up, the others start their own. The order changes from round to round, so that a
machine that grows warmer or busier favours none. The results show medians over the rounds.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from millstream_bench import document, operator_document, plots
from millstream_bench.figures import number
from millstream_bench.peers import TMPFS, broker_python, new_peer
from millstream_bench.results import Results, load, save
from millstream_bench.workload import Workload
from millstream_bench.workloads import WORKLOADS
from millstream_bench.workloads.produce import warm_up
from millstream_harness.java import KAFKA_VERSION
from millstream_harness.machine import machine

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
COMMITTED = ROOT / "bench" / "results.json"
OPERATOR = ROOT / "bench" / "operator-groups.json"

WIDTH = 150  # of the table if the output is not a terminal

console = Console(stderr=True)


class Progress:
    """A line per measurement: progress, name, numbers, time so far."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.begun = time.monotonic()

    def measured(self, workload: str, peer: str, numbers: dict[str, float]) -> None:
        self.done += 1
        said = "  ".join(f"{name} {number(value)}" for name, value in numbers.items())
        minutes = (time.monotonic() - self.begun) / 60
        console.print(
            f"[{self.done:3}/{self.total}] {minutes:5.1f} min  {workload:20} {peer:10} {said}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def measure(workloads: Sequence[Workload], rounds: int, scale: float, output: Path) -> Results:
    """Run all rounds; the results are saved after each, so that no measurement is lost."""
    shared = [workload for workload in workloads if not workload.own]
    own = [workload for workload in workloads if workload.own]
    results = Results(machine=machine() | {"kafka": KAFKA_VERSION, "python": broker_python()}, scale=scale)
    progress = Progress(sum(workload.measurements(rounds) for workload in workloads))
    for turn in range(max([rounds, *(workload.least_rounds for workload in own)])):
        for contender in in_turn(("millstream", "kafka"), turn):
            if shared and turn < rounds:
                share_a_broker(contender, shared, scale, results, progress)
        for workload in own:
            for contender in in_turn(workload.contenders, turn):
                if turn >= workload.rounds_of(contender, rounds):
                    continue
                with new_peer(contender, workload.where, workload.config, tls=workload.tls) as peer:
                    numbers = workload.run(peer, scale)
                results.add(workload.name, contender, numbers)
                progress.measured(workload.name, contender, numbers)
        results.rounds = min(turn + 1, rounds)
        save(results, output / "results.json")
    return results


def share_a_broker(
    contender: str, workloads: Sequence[Workload], scale: float, results: Results, progress: Progress
) -> None:
    with new_peer(contender, TMPFS) as peer:
        peer.start()
        warm_up(peer, scale)
        for workload in workloads:
            numbers = workload.run(peer, scale)
            results.add(workload.name, contender, numbers)
            progress.measured(workload.name, contender, numbers)


def in_turn(contenders: Sequence[str], turn: int) -> list[str]:
    return list(contenders) if turn % 2 == 0 else list(reversed(contenders))


def show(results: Results) -> None:
    table = Table(title=f"Medians of {results.rounds} rounds")
    for heading in document.HEADINGS:
        table.add_column(heading)
    for row in document.all_rows(results):
        table.add_row(*row)
    Console(width=max(WIDTH, console.width)).print(table)


def write_document(results: Results, path: Path, plot_folder: Path) -> None:
    drawn = plots.draw(results, plot_folder)
    names = [str(plot.relative_to(path.parent)) for plot in drawn]
    path.write_text(document.update(path.read_text(), results, names))


def write_operator(path: Path, measured: Path) -> None:
    """The table about the operator, where its measurement is committed."""
    if measured.exists():
        path.write_text(operator_document.update(path.read_text(), operator_document.load(measured)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (default 5)")
    parser.add_argument("--only", default="", help="names of workloads, separated by commas (default all)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records (default 1)")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "out", help="where results.json goes")
    parser.add_argument(
        "--document",
        action="store_true",
        help="measure nothing: write docs/performance.md and its plots from the files in bench/",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="put the rows of --only into bench/results.json, in place of those there, and write the document",
    )
    options = parser.parse_args(arguments)
    if options.document:
        write_document(load(COMMITTED), DOCUMENT, PLOTS)
        write_operator(DOCUMENT, OPERATOR)
        return 0
    names = {workload.name: workload for workload in WORKLOADS}
    wanted = [name for name in options.only.split(",") if name] or list(names)
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--only: no workload {unknown[0]!r}; there are {', '.join(names)}")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is less than 1")
    if not 0 < options.scale <= 10:
        parser.error(f"--scale: {options.scale:g} is not above 0 and at most 10")
    if options.add:
        committed = load(COMMITTED)
        if (options.rounds, options.scale) != (committed.rounds, committed.scale):
            parser.error(
                f"--add: the rows there are of {committed.rounds} rounds at scale {committed.scale:g}: measure these"
                " alike, or all of them anew"
            )
    for stop in (signal.SIGINT, signal.SIGTERM):  # so that no brokers or folders are left behind
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    results = measure([names[name] for name in wanted], options.rounds, options.scale, options.output)
    show(results)
    if options.add:
        committed.replace(results)
        save(committed, COMMITTED)
        write_document(committed, DOCUMENT, PLOTS)
        return 0
    plots.draw(results, options.output)
    console.print(f"results: {options.output / 'results.json'}", highlight=False)
    return 0
