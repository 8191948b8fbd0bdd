"""Three brokers beside three of Kafka's: the cost of replication, and the effects of losing a broker.

A partition's leader that is killed or stopped here is never also the controller, unless the loss of the
controller is measured. The session timeout is the same for both (clusters.SESSION_S).
"""

from __future__ import annotations

import contextlib
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

from millstream_bench import perf, process, wire
from millstream_bench.clusters import (
    POLL_S,
    SESSION_S,
    Cluster,
    all_led,
    running,
)
from millstream_bench.figures import Figure, cpu, rate
from millstream_bench.peers import KAFKA, Peer
from millstream_bench.steady import until_steady
from millstream_bench.workload import Numbers, Workload, scaled
from millstream_bench.workloads.produce import IDEMPOTENT

LARGE = {**IDEMPOTENT, "batch.size": "65536", "linger.ms": "5"}
WARM_UP_RECORDS = 300_000
SETTLE_S = 2.0
VALUE = bytes(1000)
PER_SECOND = 1_000
PARTITIONS = 1_000


def producing(records: int, size: int, props: dict[str, str]) -> Callable[[Peer, float], Numbers]:
    def run(peer: Peer, scale: float) -> Numbers:
        with running(peer) as cluster:
            warm, warming = cluster.create(), scaled(WARM_UP_RECORDS, scale)
            until_steady(
                partial(perf.produce, cluster.bootstrap, warm, warming, size, props), cluster.cpu_seconds
            )
            topic = cluster.create()
            used, beside = cluster.cpu_seconds(), beside_cpu(cluster)
            speed = perf.produce(cluster.bootstrap, topic, scaled(records, scale), size, props)
            numbers = {
                "rate": speed,
                "broker CPU": cluster.cpu_seconds() - used,
                "memory": cluster.memory_mb(),
            }
            if zookeeper := cluster.beside_brokers():
                numbers["ZooKeeper's CPU in it"] = beside_cpu(cluster) - beside
                numbers["ZooKeeper's memory in it"] = process.proportional_mb([zookeeper.pid])
            return numbers

    return run


def beside_cpu(cluster: Cluster) -> float:
    zookeeper = cluster.beside_brokers()
    return process.cpu_seconds(zookeeper.pid) if zookeeper else 0.0


def kill_leader(peer: Peer, scale: float) -> Numbers:
    """One record at a time; then kill -9, and retry at the leader's successor until it acknowledges one."""
    with running(peer) as cluster:
        leader = cluster.bystander()
        topic = cluster.create(leader=leader)
        request = wire.produce_request(topic, wire.record_batch(VALUE), acks=-1)
        with wire.connect(cluster.addresses[leader]) as sock:
            settled = time.monotonic() + SETTLE_S
            while time.monotonic() < settled:
                wire.produce_until_taken(sock, request, topic)
                time.sleep(POLL_S)
        begun = time.perf_counter()
        cluster.brokers[leader].kill()
        await_acknowledgement(cluster, leader, topic, request)
        return {"time": time.perf_counter() - begun}


def await_acknowledgement(cluster: Cluster, lost: int, topic: str, request: bytes) -> None:
    """Find the leader from live brokers, and retry until it acknowledges the record; TimeoutError after a minute."""
    deadline = time.monotonic() + wire.TIMEOUT_S
    with contextlib.ExitStack() as opened:
        living = {
            number: opened.enter_context(wire.connect(cluster.addresses[number]))
            for number in cluster.others(lost)
        }
        while time.monotonic() < deadline:
            for sock in living.values():
                for partition in wire.metadata(sock, topic).partitions:
                    leader = living.get(partition.leader)
                    if leader and wire.produce_error(wire.call(leader, request), topic) == 0:
                        return
            time.sleep(POLL_S)
    raise TimeoutError(f"no record was acknowledged for a minute after broker {lost} was killed")


def shutdown(peer: Peer, scale: float) -> Numbers:
    """An idempotent producer at a steady rate; its leader gets SIGTERM, and stops."""
    acknowledged = array("d")

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not acknowledged: {error}")
        acknowledged.append(time.perf_counter())

    with running(peer) as cluster:
        leader = cluster.bystander()
        topic = cluster.create(leader=leader)
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        sent, begun = 0, time.perf_counter()

        def load(seconds: float) -> None:
            nonlocal sent
            until = time.perf_counter() + seconds
            while (now := time.perf_counter()) < until:
                while sent < (now - begun) * PER_SECOND:
                    producer.produce(topic, VALUE, on_delivery=delivered)
                    sent += 1
                producer.poll(1 / PER_SECOND)

        load(2 * SETTLE_S)
        stopped = time.perf_counter()
        broker = cluster.brokers[leader]
        broker.launch_stop()
        while broker.process is not None and broker.process.poll() is None:
            load(POLL_S)
            if time.perf_counter() > stopped + wire.TIMEOUT_S:
                raise TimeoutError(f"broker {leader} was told to stop a minute ago:\n{broker.said()[-2000:]}")
        load(SETTLE_S)
        ended = time.perf_counter()
        if left := producer.flush(wire.TIMEOUT_S):
            raise TimeoutError(f"{left} records were not acknowledged")
        return {"time": longest_silence(acknowledged, stopped, ended)}


def longest_silence(acknowledged: array[float], begun: float, ended: float) -> float:
    """The longest time without an acknowledgement between two moments, even if it extends beyond one of them."""
    first = bisect_right(acknowledged, begun)
    times = [acknowledged[first - 1] if first else begun]
    for at in acknowledged[first:]:
        times.append(at)
        if at > ended:
            break
    else:
        times.append(ended)
    return max(later - earlier for earlier, later in pairwise(times))


def failover(peer: Peer, scale: float) -> Numbers:
    """The controller, which leads a third of the partitions, is killed; both others must learn of every new leader."""
    partitions = scaled(PARTITIONS, scale)
    with running(peer) as cluster:
        topic = cluster.create(partitions)
        time.sleep(SETTLE_S)
        lost = cluster.controller()
        begun = time.perf_counter()
        cluster.brokers[lost].kill()
        living = cluster.others(lost)
        with contextlib.ExitStack() as opened:
            socks = [opened.enter_context(wire.connect(cluster.addresses[number])) for number in living]
            while not all(all_led(wire.metadata(sock, topic), partitions, living) for sock in socks):
                if time.perf_counter() > begun + wire.TIMEOUT_S:
                    raise TimeoutError(f"{topic} has partitions without a leader a minute after the kill")
                time.sleep(POLL_S)
        return {"time": time.perf_counter() - begun}


def throughput(name: str, title: str, sizes: tuple[int, int], props: dict[str, str]) -> Workload:
    """``sizes`` are records and bytes a record."""
    return Workload(
        name=name,
        title=title,
        figures=(
            rate(1.0),
            cpu(0.3),
            Figure("memory", "MB", ratio=0.1),
            Figure("ZooKeeper's CPU in it", "s"),
            Figure("ZooKeeper's memory in it", "MB"),
        ),
        run=producing(*sizes, props),
        own=True,
    )


CLUSTER = (
    throughput(
        "cluster-200b",
        "Three brokers: 200 B records, 16 KB batches, idempotent, acks=all",
        (1_000_000, 200),
        IDEMPOTENT,
    ),
    throughput(
        "cluster-1k",
        "Three brokers: 1 KB records, 64 KB batches, idempotent, acks=all",
        (500_000, 1000),
        LARGE,
    ),
    Workload(
        name="cluster-kill-leader",
        title=f"Three brokers: a leader killed, session timeout {SESSION_S:g} s, to the next acknowledgement",
        figures=(Figure("time", "s", value=1.0),),
        run=kill_leader,
        own=True,
        rounds={KAFKA: 1},
    ),
    Workload(
        name="cluster-shutdown",
        title=f"Three brokers: a leader stopped at {PER_SECOND:,} records/s, longest time without acknowledgement",
        figures=(Figure("time", "s", value=0.5),),
        run=shutdown,
        own=True,
        rounds={KAFKA: 1},
    ),
    Workload(
        name="cluster-failover",
        title=f"Three brokers: the controller killed, {PARTITIONS:,} partitions, until all have a living leader",
        figures=(Figure("time", "s", value=2.0),),
        run=failover,
        own=True,
        rounds={KAFKA: 1},
    ),
)
