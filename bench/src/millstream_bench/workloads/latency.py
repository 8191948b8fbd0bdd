"""Acknowledgement latency at a fixed rate, open loop.

A record is due at its time whatever happened to earlier ones, and its latency counts from then, so records
delayed by a stall of the broker count in full (no coordinated omission).
"""

from __future__ import annotations

import gc
import select
import time
from array import array
from collections.abc import Callable

from millstream_bench import perf, wire
from millstream_bench.figures import Figure, cpu
from millstream_bench.peers import Peer
from millstream_bench.workload import Numbers, Workload

RATES = (1_000, 5_000, 20_000)
VALUE = bytes(1000)
SECONDS = 8.0
SETTLE_S = 2.0
SEND_AHEAD = 256  # most requests in one system call, if many are due
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def at_rate(per_second: int) -> Callable[[Peer, float], Numbers]:
    def run(peer: Peer, scale: float) -> Numbers:
        with perf.new_topic(peer.bootstrap) as topic:
            open_loop(peer.bootstrap, topic, per_second, SETTLE_S)
            before = peer.cpu_seconds()
            latencies = open_loop(peer.bootstrap, topic, per_second, max(SETTLE_S, SECONDS * scale))
            used = peer.cpu_seconds() - before
        return {
            **{name: percentile(latencies, share) * 1000 for name, share in PERCENTILES.items()},
            "broker CPU": used,
        }

    return run


def open_loop(bootstrap: str, topic: str, per_second: int, seconds: float) -> array[float]:
    """The latency of each record in seconds: one record per request, sent when it is due."""
    request = wire.produce_request(topic, wire.record_batch(VALUE))
    ahead = memoryview(request * SEND_AHEAD)
    total = round(per_second * seconds) * len(request)
    latencies = array("d")
    gc.disable()  # the client's own pauses are not the broker's
    try:
        with wire.connect(bootstrap) as sock:
            size = len(wire.produce_until_taken(sock, request, topic)) + 8
            sock.setblocking(False)
            sent = received = 0
            begun = time.perf_counter()
            while len(latencies) * len(request) < total:
                now = time.perf_counter() - begun
                due = min(total, (int(now * per_second) + 1) * len(request))
                writers = [sock] if sent < due else []
                wait = 0 if writers else max(0.0, sent / len(request) / per_second - now)
                ready = select.select([sock], writers, [], wire.TIMEOUT_S if sent == total else wait)
                if ready[1]:
                    at = sent % len(request)
                    sent += sock.send(ahead[at : at + due - sent])
                if ready[0]:
                    part = sock.recv(1 << 18)
                    if not part:
                        raise ConnectionError("the broker closed the connection")
                    now = time.perf_counter() - begun
                    received += len(part)
                    for _ in range(received // size):
                        latencies.append(now - len(latencies) / per_second)
                    received %= size
                elif not ready[1] and sent == total:
                    raise TimeoutError(f"{len(latencies)} records were acknowledged, then none for a minute")
    finally:
        gc.enable()
    return latencies


def percentile(values: array[float], share: float) -> float:
    """The least value that at least ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


LATENCY = tuple(
    Workload(
        name=f"latency-{per_second}",
        title=f"Open loop, {per_second:,} records/s of 1 KB, acks=1",
        figures=(*(Figure(name, "ms", ratio=1.0) for name in PERCENTILES), cpu()),
        run=at_rate(per_second),
    )
    for per_second in RATES
)
