"""kill -9 with gigabytes of log in a hundred partitions: the time until the broker serves again."""

from __future__ import annotations

import time

from millstream_bench import perf, wire
from millstream_bench.figures import Figure, cpu
from millstream_bench.peers import KAFKA, Peer
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.produce import LARGE

PARTITIONS = 100
RECORDS, SIZE = 5_000_000, 1000


def run(peer: Peer, scale: float) -> Numbers:
    peer.start()
    with perf.new_topic(peer.bootstrap, PARTITIONS) as topic:
        props = {**LARGE, "buffer.memory": str(128 << 20)}
        perf.produce(peer.bootstrap, topic, scaled(RECORDS, scale), SIZE, props)
        peer.kill()
        begun = time.perf_counter()
        peer.launch()
        wire.first_acknowledgement(peer.bootstrap, "started", alive=peer.alive)
        return {"time": time.perf_counter() - begun, "broker CPU": peer.cpu_seconds()}


RECOVERY = Workload(
    name="unclean-restart",
    title=f"Unclean restart with 5 GB in {PARTITIONS} partitions",
    figures=(Figure("time", "s", value=2.0), cpu()),
    run=run,
    own=True,
    rounds={KAFKA: 1},
)
