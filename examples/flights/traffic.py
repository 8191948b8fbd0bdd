"""Publishes the flights while a group of two consumes them, and samples the progress of both."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from flights import Event
from millstream.connection import Cluster
from millstream.errors import MillstreamError
from millstream.groups import describe_group

CONSUMERS = 2
SAMPLE_EVERY_S = 0.25
IDLE_TIMEOUT_S = 60.0


class Sample(NamedTuple):
    """Progress ``seconds`` after the start."""

    seconds: float
    published: int
    consumed: int
    lag: int


@dataclass
class Hour:
    """The flights scheduled to leave in one hour of the day; ``delay`` is the sum of minutes of those that left."""

    flights: int = 0
    left: int = 0
    delay: int = 0

    @property
    def mean_delay(self) -> float:
        return self.delay / self.left if self.left else 0.0


@dataclass
class Traffic:
    """The results."""

    published: Counter[str] = field(default_factory=Counter)
    consumed: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    """Published flights that did not leave, by carrier."""
    samples: list[Sample] = field(default_factory=list)
    hours: dict[int, Hour] = field(default_factory=lambda: defaultdict(Hour))
    publish_s: float = 0.0
    consume_s: float = 0.0


class Member:
    """A consumer of the group, in a process: `consumer.py`."""

    def __init__(self, bootstrap: str, group: str, topic: str, name: str) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("consumer.py")),
            bootstrap,
            group,
            topic,
            name,
        ]
        # In its own session: Ctrl-C is for the demo, which then closes its stdin.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.seen: Counter[str] | None = None  # until it has its partitions
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen = Counter(json.loads(line))

    def stop(self) -> None:
        """Make it commit and leave the group, and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(IDLE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reader.join()


class Group:
    """The consumers; leaving the block stops them in any case."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._members = [
            Member(bootstrap, group, topic, f"{group}-{number + 1}") for number in range(CONSUMERS)
        ]

    @property
    def seen(self) -> Counter[str]:
        """Records of each key that all of them have counted so far."""
        return sum((member.seen or Counter() for member in self._members), Counter())

    def wait_until_ready(self) -> None:
        """Wait until each of them has its partitions."""
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while any(member.seen is None for member in self._members):
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the consumers got no partitions within {IDLE_TIMEOUT_S:.0f} s")
            time.sleep(0.02)

    def check(self) -> None:
        if any(member.process.poll() for member in self._members):
            raise RuntimeError("a consumer failed; what it said is above")

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self._members:
            member.stop()


class Watch(Thread):
    """Samples the progress of all, with the lag from the brokers, until it is ended."""

    def __init__(self, traffic: Traffic, cluster: Cluster, group: str, consumers: Group) -> None:
        super().__init__(daemon=True)
        self._traffic, self._cluster, self._group, self._consumers = traffic, cluster, group, consumers
        self._begun = time.monotonic()
        self._ended = Flag()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            with suppress(MillstreamError):  # a request was late
                lag = describe_group(self._cluster, self._group).lag
                published = self._traffic.published.total()
                sample = Sample(self.seconds, published, self._consumers.seen.total(), lag)
                self._traffic.samples.append(sample)

    def end(self) -> None:
        self._ended.set()
        self.join()


def run(
    bootstrap: str, topic: str, group: str, events: Iterable[Event], moved: Callable[[int, int], None]
) -> Traffic:
    """Publish all events while the group consumes them; ``moved`` gets the numbers of published and consumed ones."""
    traffic = Traffic()
    with Group(bootstrap, group, topic) as consumers:
        consumers.wait_until_ready()
        watch = Watch(traffic, Cluster(bootstrap), group, consumers)
        watch.start()
        try:
            publish(
                bootstrap,
                topic,
                events,
                traffic,
                lambda: moved(traffic.published.total(), consumers.seen.total()),
            )
            traffic.publish_s = watch.seconds
            wait_for_consumers(consumers, traffic, moved)
            traffic.consume_s = watch.seconds
            time.sleep(4 * SAMPLE_EVERY_S)  # the last samples: everything is committed, no lag
        finally:
            watch.end()
    traffic.consumed = consumers.seen
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
        else:
            traffic.cancelled[event.carrier] += 1
        while True:
            try:
                producer.produce(topic, event.value, event.carrier, on_delivery=delivered)
                break
            except BufferError:  # the producer's buffer is full
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
            moved()
    if producer.flush(IDLE_TIMEOUT_S):
        raise TimeoutError(f"not all events were acknowledged within {IDLE_TIMEOUT_S:.0f} s")


def wait_for_consumers(consumers: Group, traffic: Traffic, moved: Callable[[int, int], None]) -> None:
    """Wait until they have counted as many records as are published; TimeoutError without progress."""
    published, before, since = traffic.published.total(), -1, time.monotonic()
    while (count := consumers.seen.total()) < published:
        consumers.check()
        moved(published, count)
        if count != before:
            before, since = count, time.monotonic()
        elif time.monotonic() - since > IDLE_TIMEOUT_S:
            raise TimeoutError(f"the consumers stopped at {count:,} of {published:,} records")
        time.sleep(0.05)
    moved(published, count)
