"""The floor: the cost of the bare system calls, beside the broker, for the same bytes from the same client.

`millstream_bench.bare` receives the same frames, computes the same CRC32C and writes the same bytes with
``pwrite``, or sends whole batches of a file by ``sendfile``; it does nothing else.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Callable

from millstream_bench import perf, process, wire
from millstream_bench.figures import Figure
from millstream_bench.peers import MILLSTREAM, Peer
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.single import pipelined

BARE = "floor"
BATCH = wire.record_batch(bytes(1000), 63)  # 64 KB
PRODUCED_GB, FETCHED_GB = 2.0, 6.0
WINDOW = 5
FETCH_BYTES = 1 << 20
FETCH = (1, 4)


def produce(peer: Peer, scale: float) -> Numbers:
    count = scaled(round(PRODUCED_GB * 1e9 / len(BATCH)), scale)

    def load(bootstrap: str, topic: str) -> int:
        pipelined(bootstrap, topic, count, BATCH, WINDOW)
        return count * len(BATCH)

    return measure(peer, load)


def consume(peer: Peer, scale: float) -> Numbers:
    wanted = scaled(round(FETCHED_GB * 1e9), scale)
    stored = min(wanted, 500_000_000)

    def fill(bootstrap: str, topic: str) -> None:
        pipelined(bootstrap, topic, stored // len(BATCH), BATCH, WINDOW)

    def load(bootstrap: str, topic: str) -> int:
        return fetch_all(bootstrap, topic, wanted, stored // len(BATCH) + 1)

    return measure(peer, load, fill)


def measure(
    peer: Peer, load: Callable[[str, str], int], fill: Callable[[str, str], None] = lambda *_: None
) -> Numbers:
    """CPU seconds a GB of the server: the broker, or the bare loop."""
    if peer.name == BARE:
        return _measure_bare(peer, load, fill)
    peer.start()
    with perf.new_topic(peer.bootstrap) as topic:
        fill(peer.bootstrap, topic)
        before = peer.cpu_seconds()
        gigabytes = load(peer.bootstrap, topic) / 1e9
        return {"CPU a GB": (peer.cpu_seconds() - before) / gigabytes}


def _measure_bare(peer: Peer, load: Callable[[str, str], int], fill: Callable[[str, str], None]) -> Numbers:
    command = [
        sys.executable,
        "-P",
        "-m",
        "millstream_bench.bare",
        str(peer.folder / "bare.log"),
        "bench-12345678",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bare:
        try:
            assert bare.stdout is not None
            bootstrap = f"127.0.0.1:{int(bare.stdout.readline())}"
            fill(bootstrap, "bench-12345678")
            before = process.cpu_seconds(bare.pid)
            gigabytes = load(bootstrap, "bench-12345678") / 1e9
            return {"CPU a GB": (process.cpu_seconds(bare.pid) - before) / gigabytes}
        finally:
            bare.kill()


def fetch_all(bootstrap: str, topic: str, wanted: int, batches: int) -> int:
    """Fetch a megabyte at a time, from the start again at the end, until ``wanted`` bytes have come."""
    head = fetch_head(topic)
    buffer = bytearray(2 << 20)
    got = batch = 0
    with wire.connect(bootstrap) as sock:
        while got < wanted:
            sock.sendall(fetch_request(topic, batch * 63))
            (length,) = struct.unpack(">i", wire.receive(sock, 4))
            receive_into(sock, memoryview(buffer)[:length])
            size = length - head
            got += size
            batch += size // len(BATCH)
            if size <= 0 or batch >= batches:
                batch = 0
    return got


def receive_into(sock: socket.socket, view: memoryview) -> None:
    while view:
        count = sock.recv_into(view)
        if not count:
            raise ConnectionError("the broker closed the connection")
        view = view[count:]


def fetch_request(topic: str, offset: int) -> bytes:
    """Fetch v4 of partition 0: no waiting, a megabyte at most."""
    head = struct.pack(">iiiib", -1, 100, 1, FETCH_BYTES, 0)
    topics = struct.pack(">i", 1) + wire.text(topic) + struct.pack(">iiqi", 1, 0, offset, FETCH_BYTES)
    return wire.frame(FETCH, head + topics)


def fetch_head(topic: str) -> int:
    """Bytes of a Fetch v4 response before its records: correlation id to the records' length."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + (4 + 2 + 8 + 8 + 4 + 4)


FLOOR = (
    Workload(
        name="floor-produce",
        title="64 KB batches: recv, CRC32C, pwrite",
        figures=(Figure("CPU a GB", "s", ratio=1.25),),
        run=produce,
        own=True,
        contenders=(MILLSTREAM, BARE),
    ),
    Workload(
        name="floor-fetch",
        title="1 MB fetches: sendfile",
        figures=(Figure("CPU a GB", "s", ratio=1.25),),
        run=consume,
        own=True,
        contenders=(MILLSTREAM, BARE),
    ),
)
