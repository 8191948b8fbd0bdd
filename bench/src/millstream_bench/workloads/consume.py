"""Kafka's ConsumerPerformance: from a hot page cache, and catching up with a producer at work."""

from __future__ import annotations

import time
from collections.abc import Callable

from millstream_bench import perf
from millstream_bench.figures import cpu, rate
from millstream_bench.peers import Peer
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.produce import LARGE, SMALL

RECORDS, SIZE = 1_000_000, 1000
SMALL_RECORDS, SMALL_SIZE = 3_000_000, 200
CATCH_UP_RECORDS = 500_000


def hot(records: int, size: int, props: dict[str, str]) -> Callable[[Peer, float], Numbers]:
    """Read records that were just produced: all are in the page cache."""

    def run(peer: Peer, scale: float) -> Numbers:
        count = scaled(records, scale)
        with perf.new_topic(peer.bootstrap) as topic:
            perf.produce(peer.bootstrap, topic, count, size, props)
            before = peer.cpu_seconds()
            speed = perf.consume(peer.bootstrap, topic, count)
            return {"rate": speed, "broker CPU": peer.cpu_seconds() - before}

    return run


def catching_up(peer: Peer, scale: float) -> Numbers:
    """Half the records are there when producer and consumer start; both end when all are read."""
    records = scaled(CATCH_UP_RECORDS, scale)
    with perf.new_topic(peer.bootstrap) as topic:
        perf.produce(peer.bootstrap, topic, records, SIZE, LARGE)
        before, begun = peer.cpu_seconds(), time.perf_counter()
        producer = perf.spawn(perf.producer_command(peer.bootstrap, topic, records, SIZE, LARGE))
        try:
            perf.consume(peer.bootstrap, topic, 2 * records)
            seconds = time.perf_counter() - begun
            perf.produced_rate(producer.communicate(timeout=perf.TIMEOUT_S)[0], records)
        finally:
            producer.kill()
        return {"rate": 2 * records / seconds, "broker CPU": peer.cpu_seconds() - before}


CONSUME = (
    Workload(
        name="consumer-hot",
        title="ConsumerPerformance, 1 KB records, hot cache",
        figures=(rate(1.0), cpu(0.6)),
        run=hot(RECORDS, SIZE, LARGE),
    ),
    Workload(
        name="consumer-hot-200b",
        title="ConsumerPerformance, 200 B records in 16 KB batches, hot cache",
        figures=(rate(1.0), cpu(0.6)),
        run=hot(SMALL_RECORDS, SMALL_SIZE, SMALL),
    ),
    Workload(
        name="consumer-catch-up",
        title="Catching up while producing, 1 KB records",
        figures=(rate(1.0), cpu(0.6)),
        run=catching_up,
    ),
)
