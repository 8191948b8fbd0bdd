"""The library beside bare confluent-kafka, in one process and in turn: produce and streams at 200 B and 1 KB.

    PYTHONPATH=bench/src:tests/harness .venv/bin/python -P -m millstream_bench.library --rounds 5

The bare producer reports failures by a callback and polls after each record. The bare consumer takes a thousand
messages at a time, checks for errors and reads values. Its queue is refilled as soon as ours: by default it would
stand still for up to a second whenever the queue was full. Rates are medians. CPU is that of this process,
including librdkafka's threads: on a busy machine it says more than the rates.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import millstream
from millstream.consuming.settings import QUEUE_BACKOFF_MS, Strategy
from millstream.topics import create_topic
from millstream_bench.peers import TMPFS
from millstream_harness.broker import BrokerProcess

PARTITIONS = 4
SIZES = ((200, 400_000), (1000, 150_000))
Measured = tuple[float, float]
"""Records a second, and CPU in microseconds a record."""


class Clock:
    """Measures from its start."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, count: int) -> Measured:
        return (
            count / (time.perf_counter() - self._wall),
            (time.process_time() - self._cpu) / count * 1e6,
        )


def bare_produce(cluster: millstream.Cluster, topic: str, count: int, value: bytes) -> Measured:
    failed: list[Any] = []

    def report(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    settings = {
        "linger.ms": 5,
        "acks": "all",
        "enable.idempotence": True,
        "queue.buffering.max.kbytes": 65536,
        "on_delivery": report,
    }
    producer: Any = Producer(cluster.client_config() | settings)
    clock = Clock()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    assert not failed
    return clock.stop(count)


def our_produce(cluster: millstream.Cluster, topic: str, count: int, value: bytes) -> Measured:
    with millstream.Producer(cluster) as producer:
        clock = Clock()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush()
        return clock.stop(count)


def bare_consume(cluster: millstream.Cluster, topic: str, count: int, _: bytes) -> Measured:
    settings = {
        "group.id": uuid.uuid4().hex,
        "enable.auto.commit": False,
        "queued.max.messages.kbytes": 32768,
        "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
    }
    consumer: Any = Consumer(cluster.client_config() | settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen = size = 0
    clock: Clock | None = None
    while seen < count:
        for message in consumer.consume(1000, 0.1):
            clock = clock or Clock()
            if message.error() is None:
                size += len(message.value())
                seen += 1
    assert clock is not None
    found = clock.stop(count)
    consumer.close()
    return found


def our_consume(cluster: millstream.Cluster, topic: str, count: int, _: bytes) -> Measured:
    return _our_consume(cluster, topic, count, "cooperative-sticky")


def our_consume_by_range(cluster: millstream.Cluster, topic: str, count: int, _: bytes) -> Measured:
    return _our_consume(cluster, topic, count, "range")


def _our_consume(cluster: millstream.Cluster, topic: str, count: int, strategy: Strategy) -> Measured:
    with millstream.connect(cluster, group=uuid.uuid4().hex, strategy=strategy) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        size = 0
        clock: Clock | None = None
        for seen, message in enumerate(stream, start=1):
            clock = clock or Clock()
            size += len(message.value)
            if seen == count:
                break
        assert clock is not None
        return clock.stop(count)


PAIRS: tuple[tuple[str, Callable[..., Measured], Callable[..., Measured]], ...] = (
    ("produce", bare_produce, our_produce),
    ("streams", bare_consume, our_consume),
)


def main(rounds: int) -> None:
    print(f"{'':<16} {'bare/s':>12} {'ours/s':>12} {'ratio':>6} {'bare CPU µs':>12} {'ours CPU µs':>12}")
    config = {"group.initial.rebalance.delay.ms": "0"}
    with tempfile.TemporaryDirectory(dir=TMPFS) as folder, BrokerProcess(Path(folder), config) as broker:
        cluster = millstream.Cluster(broker.bootstrap)
        for size, count in SIZES:
            found: dict[Callable[..., Measured], list[Measured]] = {}
            for _ in range(rounds):
                topics = {produce: f"bench-{uuid.uuid4().hex}" for produce in (bare_produce, our_produce)}
                for produce, topic in topics.items():
                    create_topic(cluster, topic, partitions=PARTITIONS)
                    found.setdefault(produce, []).append(produce(cluster, topic, count, bytes(size)))
                for consume in (bare_consume, our_consume):
                    found.setdefault(consume, []).append(consume(cluster, topics[bare_produce], count, b""))
            for name, bare, ours in PAIRS:
                (rate, cpu), (our_rate, our_cpu) = (
                    tuple(map(statistics.median, zip(*found[one], strict=True))) for one in (bare, ours)
                )
                print(
                    f"{name + f' {size} B':<16} {rate:>12,.0f} {our_rate:>12,.0f} {our_rate / rate:>6.2f} "
                    f"{cpu:>12.2f} {our_cpu:>12.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    main(arguments.parse_args().rounds)
