"""One record a request, 64 requests in flight on one connection: the 2011 paper's batch of one."""

from __future__ import annotations

import time

from millstream_bench import perf, wire
from millstream_bench.figures import cpu, rate
from millstream_bench.peers import Peer
from millstream_bench.workload import Numbers, Workload, scaled

REQUESTS = 150_000
IN_FLIGHT = 64
VALUE = bytes(200)


def run(peer: Peer, scale: float) -> Numbers:
    with perf.new_topic(peer.bootstrap) as topic:
        before = peer.cpu_seconds()
        seconds = pipelined(peer.bootstrap, topic, scaled(REQUESTS, scale))
        return {"rate": scaled(REQUESTS, scale) / seconds, "broker CPU": peer.cpu_seconds() - before}


def pipelined(
    bootstrap: str, topic: str, count: int, batch: bytes | None = None, window: int = IN_FLIGHT
) -> float:
    """Seconds for ``count`` equal requests with ``window`` in flight.

    Every response has the same length, so counting bytes counts acknowledgements; the last one's offset
    shows that all were accepted.
    """
    request = wire.produce_request(topic, wire.record_batch(VALUE) if batch is None else batch)
    with wire.connect(bootstrap) as sock:
        first = wire.produce_until_taken(sock, request, topic)
        size = len(first) + 8
        left, pending, received = count, 0, 0
        last = b""
        begun = time.perf_counter()
        while left or pending:
            if send := min(window - pending, left):
                sock.sendall(request * send)
                left -= send
                pending += send
            part = sock.recv(1 << 18)
            if not part:
                raise ConnectionError("the broker closed the connection")
            last = (last + part)[-size:]
            received += len(part)
            pending -= received // size
            received %= size
        seconds = time.perf_counter() - begun
        if code := wire.produce_error(last[8:], topic):
            raise RuntimeError(f"the broker answered the last produce request with error {code}")
    return seconds


SINGLE = Workload(
    name="single-64",
    title="One record a request, 64 in flight, 200 B, acks=1",
    figures=(rate(2.5), cpu()),
    run=run,
)
