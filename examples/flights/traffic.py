"""A group of two waits for the flights, which are then published; watching how far both are.

A consumer counts a record and then commits its offset, before it may be given away: so however partitions move
between the two, a record is counted once.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as Flag
from threading import Event as ThreadEvent
from threading import Thread
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from flights import Event
from millstream.connection import Cluster
from millstream.errors import MillstreamError
from millstream.groups import describe_group

CONSUMERS = 2
COMMIT_EVERY_S = 0.25
SAMPLE_EVERY_S = 0.25
IDLE_TIMEOUT_S = 60.0
NOT_READY = -1
PROCESSES = multiprocessing.get_context("spawn")


class Sample(NamedTuple):
    """How far things were, ``seconds`` after the begin."""

    seconds: float
    published: int
    consumed: int
    lag: int


@dataclass
class Hour:
    """The flights that were to leave in one hour of the day."""

    flights: int = 0
    left: int = 0
    delay: int = 0

    @property
    def mean_delay(self) -> float:
        return self.delay / self.left if self.left else 0.0


@dataclass
class Traffic:
    """What came of it."""

    published: Counter[str] = field(default_factory=Counter)
    consumed: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    hours: dict[int, Hour] = field(default_factory=lambda: defaultdict(Hour))
    publish_s: float = 0.0
    consume_s: float = 0.0


class Group:
    """Consumers as processes of their own; leaving the block ends them, whatever happened in it."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._stop = PROCESSES.Event()
        self._members: list[tuple[BaseProcess, Connection[Any, Any]]] = []
        self._counts: list[Any] = [PROCESSES.Value("q", NOT_READY) for _ in range(CONSUMERS)]
        for number, count in enumerate(self._counts, start=1):
            ours, theirs = PROCESSES.Pipe(duplex=False)
            arguments = (bootstrap, group, topic, f"{group}-{number}", self._stop, count, theirs)
            process = PROCESSES.Process(target=consume, args=arguments, daemon=True)
            self._members.append((process, ours))

    def __enter__(self) -> Group:
        for process, _ in self._members:
            process.start()
        return self

    @property
    def count(self) -> int:
        """Records that all of them have counted so far."""
        return sum(max(count.value, 0) for count in self._counts)

    def wait_until_ready(self) -> None:
        """Until each of them has its partitions."""
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while any(count.value == NOT_READY for count in self._counts):
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the consumers got no partitions within {IDLE_TIMEOUT_S:.0f} s")
            time.sleep(0.02)

    def check(self) -> None:
        if any(process.exitcode for process, _ in self._members):
            raise RuntimeError("a consumer failed; what it said is above")

    def stop(self) -> Counter[str]:
        """Have them commit and leave the group; what they counted by key."""
        self._stop.set()
        total: Counter[str] = Counter()
        for process, pipe in self._members:
            if pipe.poll(IDLE_TIMEOUT_S):
                total += pipe.recv()
            process.join(IDLE_TIMEOUT_S)
        return total

    def __exit__(self, *error: object) -> None:
        for process, _ in self._members:
            if process.is_alive():
                process.kill()
            process.join()


def consume(
    bootstrap: str, group: str, topic: str, name: str, stop: Flag, count: Any, result: Connection[Any, Any]
) -> None:
    """One member of the group, until told to stop; sends how many records it had of each key."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo, which stops us
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    seen: Counter[str] = Counter()

    def commit(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with suppress(KafkaException):  # nothing to commit yet
            consumer.commit(asynchronous=False)

    consumer.subscribe([topic], on_revoke=commit)
    committed = time.monotonic()
    while not stop.is_set():
        messages = consumer.consume(2000, timeout=0.1)
        for message in messages:
            if (error := message.error()) is None:
                seen[(message.key() or b"").decode()] += 1
            elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise KafkaException(error)
        if seen or consumer.assignment():
            count.value = seen.total()
        if seen and time.monotonic() - committed > COMMIT_EVERY_S:
            with suppress(KafkaException):
                consumer.commit(asynchronous=True)
            committed = time.monotonic()
    commit(consumer, [])
    consumer.close()
    result.send(seen)


class Watch(Thread):
    """Takes samples of how far all are, the lag as the brokers know it, until it is ended."""

    def __init__(self, traffic: Traffic, cluster: Cluster, group: str, consumers: Group) -> None:
        super().__init__(daemon=True)
        self._traffic, self._cluster, self._group, self._consumers = traffic, cluster, group, consumers
        self._begun = time.monotonic()
        self._ended = ThreadEvent()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            with suppress(MillstreamError):  # the group is not there yet, or a request was late
                lag = describe_group(self._cluster, self._group).lag
                published = self._traffic.published.total()
                self._traffic.samples.append(Sample(self.seconds, published, self._consumers.count, lag))

    def end(self) -> None:
        self._ended.set()
        self.join()


def run(
    bootstrap: str, topic: str, group: str, events: Iterable[Event], moved: Callable[[int, int], None]
) -> Traffic:
    """Publish all events and have them consumed; ``moved`` is told how many records are published and consumed."""
    traffic = Traffic()
    with Group(bootstrap, group, topic) as consumers:
        consumers.wait_until_ready()
        watch = Watch(traffic, Cluster(bootstrap), group, consumers)
        watch.start()
        try:
            publish(
                bootstrap, topic, events, traffic, lambda: moved(traffic.published.total(), consumers.count)
            )
            traffic.publish_s = watch.seconds
            wait_for_consumers(consumers, traffic, moved)
            traffic.consume_s = watch.seconds
            traffic.consumed = consumers.stop()
            time.sleep(2 * SAMPLE_EVERY_S)  # the last samples: all is committed, no lag
        finally:
            watch.end()
    return traffic


def publish(
    bootstrap: str, topic: str, events: Iterable[Event], traffic: Traffic, moved: Callable[[], None]
) -> None:
    """Append every event, and count those that the brokers have acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 10, "log_level": 0}
    )
    acknowledged = traffic.published

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        acknowledged[message.key().decode()] += 1

    for number, event in enumerate(events):
        hour = traffic.hours[event.hour]
        hour.flights += 1
        if event.delay is not None:
            hour.left += 1
            hour.delay += event.delay
        while True:
            try:
                producer.produce(topic, event.value, event.carrier, on_delivery=delivered)
                break
            except BufferError:  # as much as the producer holds is on its way
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
            moved()
    if producer.flush(IDLE_TIMEOUT_S):
        raise TimeoutError(f"not all events were acknowledged within {IDLE_TIMEOUT_S:.0f} s")


def wait_for_consumers(consumers: Group, traffic: Traffic, moved: Callable[[int, int], None]) -> None:
    """Until they have counted as many records as are published; TimeoutError when they get no further."""
    published, before, since = traffic.published.total(), -1, time.monotonic()
    while (count := consumers.count) < published:
        consumers.check()
        moved(published, count)
        if count != before:
            before, since = count, time.monotonic()
        elif time.monotonic() - since > IDLE_TIMEOUT_S:
            raise TimeoutError(f"the consumers stopped at {count:,} of {published:,} records")
        time.sleep(0.05)
    moved(published, consumers.count)
