"""Start to the first acknowledged record: from the creation of the process until a minimal client's record is taken."""

from __future__ import annotations

import time

from millstream_bench import wire
from millstream_bench.figures import Figure
from millstream_bench.peers import Peer
from millstream_bench.workload import Numbers, Workload


def run(peer: Peer, scale: float) -> Numbers:
    peer.prepare()
    begun = time.perf_counter()
    peer.launch()
    wire.first_acknowledgement(peer.bootstrap, "first", alive=peer.alive)
    seconds = time.perf_counter() - begun
    return {"time": seconds, "broker CPU": peer.cpu_seconds(), "memory": peer.resident_mb()}


START = Workload(
    name="start",
    title="Start to the first acknowledged record",
    figures=(
        Figure("time", "s", ratio=0.25, value=0.5),
        Figure("broker CPU", "s"),
        Figure("memory", "MB"),
    ),
    run=run,
    own=True,
)
