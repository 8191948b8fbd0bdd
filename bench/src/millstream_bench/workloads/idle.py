"""Two thousand idle partitions and two hundred idle connections, and a clean restart with them."""

from __future__ import annotations

import contextlib
import time

from millstream_bench import perf, wire
from millstream_bench.figures import Figure
from millstream_bench.peers import KAFKA, Peer
from millstream_bench.workload import Numbers, Workload, scaled

PARTITIONS, CONNECTIONS = 2_000, 200
SECONDS, SETTLE_S = 10.0, 5.0


def run(peer: Peer, scale: float) -> Numbers:
    partitions = scaled(PARTITIONS, scale)
    peer.start()
    perf.admin(peer.bootstrap).list_topics(timeout=30)
    before = peer.resident_mb()
    with perf.new_topic(peer.bootstrap, partitions), contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS):
            sock = opened.enter_context(wire.connect(peer.bootstrap))
            wire.call(sock, wire.metadata_request("started"))
        time.sleep(SETTLE_S)
        memory = peer.resident_mb() - before
        used = peer.cpu_seconds()
        time.sleep(SECONDS)
        used = peer.cpu_seconds() - used
        opened.close()
        peer.stop()
        begun = time.perf_counter()
        peer.launch()
        wire.first_acknowledgement(peer.bootstrap, "started", alive=peer.alive)
        return {
            "CPU": 100 * used / SECONDS,
            "memory a partition": 1000 * memory / partitions,
            "clean restart": time.perf_counter() - begun,
        }


IDLE = Workload(
    name="idle",
    title=f"{PARTITIONS:,} partitions and {CONNECTIONS} connections, idle",
    figures=(
        Figure("CPU", "% of a core", value=2.0),
        Figure("memory a partition", "KB", value=20.0),
        Figure("clean restart", "s", value=2.0),
    ),
    run=run,
    own=True,
    rounds={KAFKA: 1},
)
