"""Resident memory: after the flights of a year, and after all workloads of a session."""

from __future__ import annotations

import functools

from confluent_kafka import Producer

from flights import ROWS, events
from millstream_bench import perf
from millstream_bench.figures import Figure
from millstream_bench.peers import Peer
from millstream_bench.workload import Numbers, Workload, scaled


@functools.cache
def flights() -> tuple[tuple[bytes, bytes], ...]:
    """(carrier, JSON) of every flight, read once."""
    return tuple((event.carrier.encode(), event.value) for event in events())


def run(peer: Peer, scale: float) -> Numbers:
    peer.start()
    with perf.new_topic(peer.bootstrap, 6) as topic:
        rows = flights()[: scaled(ROWS, scale)]
        producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        for key, value in rows:
            while True:
                try:
                    producer.produce(topic, key=key, value=value)
                    break
                except BufferError:
                    producer.poll(0.05)
        if left := producer.flush(60):
            raise TimeoutError(f"{left} flights were not acknowledged")
        perf.consume(peer.bootstrap, topic, len(rows))
        return {"memory": peer.resident_mb(), "broker CPU": peer.cpu_seconds()}


def after_all(peer: Peer, scale: float) -> Numbers:
    return {"memory": peer.resident_mb()}


FLIGHTS = Workload(
    name="flights",
    title=f"{ROWS:,} flights produced and consumed",
    figures=(Figure("memory", "MB", value=80.0), Figure("broker CPU", "s")),
    run=run,
    own=True,
)

AFTER_ALL = Workload(
    name="memory-after-all",
    title="After all the workloads above",
    figures=(Figure("memory", "MB", ratio=0.1, value=100.0),),
    run=after_all,
)
