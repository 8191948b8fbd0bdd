"""A mirror's worker between two brokers, beside MirrorMaker 2; and our own with a killed neighbour, and with thousands
of partitions: in both modes, between two Millstreams, and with a login at Apache Kafka."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import select
import socket
import struct
import time
from array import array
from collections.abc import Callable

from confluent_kafka import Producer

from millstream_bench import mirrors, perf, wire
from millstream_bench.figures import Figure, rate
from millstream_bench.mirrors import IDENTITY, Arrivals, Ends, Route
from millstream_bench.peers import KAFKA, MILLSTREAM, MIRRORMAKER2, Peer
from millstream_bench.steady import until_steady
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.floor import receive_into
from millstream_bench.workloads.latency import percentile
from millstream_bench.workloads.produce import LARGE
from millstream_harness.mirror import MirrorProcess
from millstream_kafka.compression import Compression

PARTITIONS = 4
RECORDS, WARM_UP_RECORDS, SIZE = 600_000, 100_000, 1000
LZ4 = {**LARGE, "compression.type": "lz4"}
BATCHES_PER_SECOND, BATCH_RECORDS = 1_000, 10
"""10 MB a second."""
SECONDS, SETTLE_S = 10.0, 5.0
FETCH = (1, 4)
MOST_WARM_UPS = 12
"""Before the backlog is used up."""
MANY_TOPICS, MANY_PARTITIONS = 50, 100


def beside(ends: Ends, peer: Peer, scale: float) -> Numbers:
    """A backlog, from the worker's start until it is copied; then a steady rate."""
    source, target = ends.source, ends.target
    warm_up, records = scaled(WARM_UP_RECORDS, scale), scaled(RECORDS, scale)
    with perf.new_topic(source.bootstrap, PARTITIONS) as topic:
        backlog = MOST_WARM_UPS * warm_up + records
        perf.produce(source.bootstrap, topic, backlog, SIZE, LZ4)
        mirror = ends.worker(peer.name, peer.folder / "mirror")
        mirror.prepare()
        with contextlib.closing(Arrivals(target, topic, PARTITIONS, [mirror])) as arrivals:
            begun = time.perf_counter()
            mirror.launch(mirror.command)
            try:
                arrivals.until(1)
                first = time.perf_counter() - begun
                marks = itertools.count(warm_up, warm_up)
                until_steady(
                    lambda: arrivals.until(next(marks)),
                    lambda: mirrors.cpu_seconds(mirror),
                    most_runs=MOST_WARM_UPS,
                )
                before, used, begun = arrivals.count, mirrors.cpu_seconds(mirror), time.perf_counter()
                if before > backlog - records // 2:
                    raise RuntimeError(f"--scale {scale:g} is too small: too few records left to measure")
                arrivals.until(min(backlog, before + records))
                seconds = time.perf_counter() - begun
                count, used = arrivals.count - before, mirrors.cpu_seconds(mirror) - used
                memory = mirrors.resident_mb(mirror)
                arrivals.until(backlog)
                mirrors.commit_positions(source, [topic], PARTITIONS)
                mirrors.await_positions(target, PARTITIONS)
                p99 = percentile(lags(source, target, topic, max(1.0, SECONDS * scale)), 0.99)
            finally:
                mirror.kill()
        return {
            "start to the first record": first,
            "rate": count / seconds,
            "CPU a million records": used * 1e6 / count,
            "records a CPU second": count / used,
            "memory": memory,
            "p99 lag at 10 MB/s": p99 * 1000,
        }


def lags(source: Peer, target: Peer, topic: str, seconds: float) -> array[float]:
    """The seconds from each batch's due time in the source until the target has it: open loop, partition 0."""
    value = os.urandom(SIZE)
    request = wire.produce_request(topic, wire.record_batch(value, BATCH_RECORDS, Compression.LZ4))
    settle, total = (round(BATCHES_PER_SECOND * each) for each in (SETTLE_S, SETTLE_S + seconds))
    arrived = array("d")
    gc.disable()  # the client's own pauses are not the mirror's
    try:
        with wire.connect(source.bootstrap) as here, wire.connect(target.bootstrap) as there:
            first = offset = wire.end_offsets(there, topic, 1)[0]
            there.sendall(fetch_request(topic, offset))
            sent, begun = 0, time.perf_counter()
            while len(arrived) < total:
                now = time.perf_counter() - begun
                while sent < min(total, int(now * BATCHES_PER_SECOND) + 1):
                    here.sendall(request)
                    sent += 1
                wait = wire.TIMEOUT_S if sent == total else max(0.0, sent / BATCHES_PER_SECOND - now)
                ready = select.select([here, there], [], [], wait)[0]
                if here in ready and not here.recv(1 << 16):
                    raise ConnectionError("the source closed the connection")
                if there in ready:
                    offset = max(offset, high_watermark(there, topic))
                    now = time.perf_counter() - begun
                    for number in range(len(arrived), (offset - first) // BATCH_RECORDS):
                        arrived.append(now - number / BATCHES_PER_SECOND)
                    there.sendall(fetch_request(topic, offset))
                if now > SETTLE_S + seconds + wire.TIMEOUT_S:
                    raise TimeoutError(f"{len(arrived)} of {total} batches are in the target after a minute")
    finally:
        gc.enable()
    return arrived[settle:]


def fetch_request(topic: str, offset: int) -> bytes:
    """Fetch v4 of partition 0: one batch, as soon as there is one."""
    head = struct.pack(">iiiib", -1, 100, 1, 1, 0)
    topics = struct.pack(">i", 1) + wire.text(topic) + struct.pack(">iiqi", 1, 0, offset, 1)
    return wire.frame(FETCH, head + topics)


def high_watermark(sock: socket.socket, topic: str) -> int:
    """From the response to ``fetch_request``."""
    (length,) = struct.unpack(">i", wire.receive(sock, 4))
    response = bytearray(length)
    receive_into(sock, memoryview(response))
    at = 4 + 4 + 4 + 2 + len(topic.encode()) + 4  # correlation id, throttle time, topics, name, partitions
    _, error, offset = struct.unpack_from(">ihq", response, at)
    if error:
        raise RuntimeError(f"the target answered a fetch with error {error}")
    return int(offset)


def killed(ends: Ends, peer: Peer, scale: float) -> Numbers:
    """Two workers share the partitions, and one is killed: until each partition's next record has arrived."""
    with contextlib.ExitStack() as opened:
        topic = opened.enter_context(perf.new_topic(ends.source.bootstrap, PARTITIONS))
        spread(ends.source, [topic], PARTITIONS)
        mirrors.commit_positions(ends.source, [topic], PARTITIONS)
        workers = [ends.our_worker(peer.folder / f"mirror-{number}") for number in range(2)]
        for one in workers:
            opened.callback(one.kill)
            one.start()
        await_shared(workers)
        arrivals = opened.enter_context(contextlib.closing(Arrivals(ends.target, topic, PARTITIONS, workers)))
        arrivals.until(PARTITIONS)
        mirrors.await_positions(ends.target, PARTITIONS)
        begun = time.perf_counter()
        workers[0].kill()
        spread(ends.source, [topic], PARTITIONS)
        arrivals.until(2 * PARTITIONS)
        return {"time": time.perf_counter() - begun}


def await_shared(workers: list[MirrorProcess]) -> None:
    """Wait until each worker has its share of the partitions."""
    deadline = time.monotonic() + wire.TIMEOUT_S
    while True:
        shares = [sum(source["partitions"] for source in one.status()["sources"]) for one in workers]
        if shares == [PARTITIONS // len(workers)] * len(workers):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the workers have {shares} of {PARTITIONS} partitions")
        time.sleep(0.1)


def many(ends: Ends, peer: Peer, scale: float) -> Numbers:
    """One worker mirrors thousands of partitions with a record each, in topics that are new to the target, and the
    positions of a group in all of them."""
    with contextlib.ExitStack() as opened:
        topics = [
            opened.enter_context(perf.new_topic(ends.source.bootstrap, MANY_PARTITIONS))
            for _ in range(scaled(MANY_TOPICS, scale))
        ]
        spread(ends.source, topics, MANY_PARTITIONS)
        mirrors.commit_positions(ends.source, topics, MANY_PARTITIONS)
        mirror = ends.our_worker(peer.folder / "mirror")
        opened.callback(mirror.kill)
        begun = time.perf_counter()
        mirror.start()
        for topic in topics:
            with contextlib.closing(Arrivals(ends.target, topic, MANY_PARTITIONS, [mirror])) as arrivals:
                arrivals.until(MANY_PARTITIONS)
        seconds = time.perf_counter() - begun
        mirrors.await_positions(ends.target, len(topics) * MANY_PARTITIONS)
        used = mirrors.cpu_seconds(mirror)
        time.sleep(SETTLE_S)
        return {
            "memory": mirrors.resident_mb(mirror),
            "until all are mirrored": seconds,
            "CPU, idle": 100 * (mirrors.cpu_seconds(mirror) - used) / SETTLE_S,
        }


def spread(peer: Peer, topics: list[str], partitions: int) -> None:
    """One record into each partition."""
    producer = Producer({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    for topic in topics:
        for number in range(partitions):
            producer.produce(topic, bytes(SIZE), partition=number)
        producer.poll(0)
    if left := producer.flush(wire.TIMEOUT_S):
        raise TimeoutError(f"{left} records were not acknowledged")


def over(route: Route, measured: Callable[[Ends, Peer, float], Numbers]) -> Callable[[Peer, float], Numbers]:
    """Between the brokers of the route, which it starts."""

    def run(peer: Peer, scale: float) -> Numbers:
        with mirrors.ends(peer, route) as ends:
            return measured(ends, peer, scale)

    return run


def rows(suffix: str, route: Route) -> tuple[Workload, ...]:
    """What is measured of mirrors over a route; the suffix is that of the names."""
    return (
        Workload(
            name=f"mirror{suffix}",
            title=f"Mirroring 1 KB records, lz4, {PARTITIONS} partitions, positions of groups synced, {route.title}",
            figures=(
                Figure("start to the first record", "s", value=1.0),
                rate(),
                Figure("CPU a million records", "s"),
                Figure("records a CPU second", "records", higher_is_better=True, ratio=15.0),
                Figure("memory", "MB", ratio=0.05),
                Figure("p99 lag at 10 MB/s", "ms", value=100.0),
            ),
            run=over(route, beside),
            own=True,
            config=route.config,
            contenders=(MILLSTREAM, MIRRORMAKER2),
        ),
        Workload(
            name=f"mirror-killed{suffix}",
            title=f"Mirroring: a worker killed, until others continue with its partitions, {route.title}",
            figures=(Figure("time", "s", value=2.0),),
            run=over(route, killed),
            own=True,
            config=route.config,
            contenders=(MILLSTREAM,),
        ),
        Workload(
            name=f"mirror-many{suffix}",
            title=f"Mirroring {MANY_TOPICS * MANY_PARTITIONS:,} partitions by one worker, {route.title}",
            figures=(
                Figure("memory", "MB", value=200.0),
                Figure("until all are mirrored", "s"),
                Figure("CPU, idle", "% of a core"),
            ),
            run=over(route, many),
            own=True,
            config=route.config,
            contenders=(MILLSTREAM,),
        ),
    )


MIRROR = (
    *rows("", Route()),
    *rows("-identity", Route(IDENTITY)),
    *rows("-credentials", Route(source=KAFKA)),
    *rows("-into-kafka", Route(source=KAFKA, target=KAFKA)),
    *rows("-identity-credentials", Route(IDENTITY, source=KAFKA)),
)
