"""What importing the library takes in a new interpreter, beyond a bare one; beside confluent-kafka.

``import millstream`` alone loads nothing of Kafka's client, so the names that most programs use are measured as well.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from millstream_bench.figures import Figure, median
from millstream_bench.peers import MILLSTREAM, Peer
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.library import BARE, LEAST_ROUNDS

INTERPRETERS = 15
NOTHING = "pass"
IMPORTS = {
    MILLSTREAM: ("import millstream", "from millstream import Producer, connect"),
    BARE: ("import confluent_kafka", "from confluent_kafka import Consumer, Producer"),
}
Spent = tuple[float, float]
"""Time and CPU, in milliseconds."""


def run(peer: Peer, scale: float) -> Numbers:
    """No broker: the peer only names the library. Each statement takes its turn, so that all meet the same machine."""
    alone, first = IMPORTS[peer.name]
    statements = (NOTHING, alone, first)
    for statement in statements:
        interpreter(statement)  # compiles modules, and reads them from the disk
    spent: dict[str, list[Spent]] = {statement: [] for statement in statements}
    for _ in range(scaled(INTERPRETERS, scale)):
        for statement in statements:
            spent[statement].append(interpreter(statement))
    bare, imported, used = (medians(spent[statement]) for statement in statements)
    return {
        "time": imported[0] - bare[0],
        "CPU": imported[1] - bare[1],
        "producer and consumer, time": used[0] - bare[0],
        "producer and consumer, CPU": used[1] - bare[1],
    }


def interpreter(statement: str) -> Spent:
    """Run a statement in a new one, to its end."""
    command = [sys.executable, "-P", "-c", statement]
    begun = time.perf_counter()
    process = os.posix_spawn(command[0], command, os.environ)
    _, status, used = os.wait4(process, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise RuntimeError(f"{statement!r} ended with status {os.waitstatus_to_exitcode(status)}")
    return 1000 * seconds, 1000 * (used.ru_utime + used.ru_stime)


def medians(spent: Sequence[Spent]) -> Spent:
    return median([one for one, _ in spent]), median([one for _, one in spent])


IMPORT = Workload(
    name="library-import",
    title="Python library, import in a new interpreter, beyond a bare one",
    figures=(
        Figure("time", "ms", value=150.0),
        Figure("CPU", "ms"),
        Figure("producer and consumer, time", "ms"),
        Figure("producer and consumer, CPU", "ms"),
    ),
    run=run,
    own=True,
    contenders=(MILLSTREAM, BARE),
    least_rounds=LEAST_ROUNDS,
)
