"""The demo's last part: the same flights through three brokers, one of which is killed meanwhile.

up       examples/cluster by the local runtime: three brokers and a ZooKeeper, a topic of three replicas
publish  acks=all; after a third of the flights, the leader of partition 0 gets SIGKILL
up       again, at once: it restarts the killed broker, as Kubernetes does elsewhere
read     every acknowledged record is there, once, and every replica is in sync
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import traffic
from flights import ROWS, Event
from millstream_operator.local.java import NotInstalled, find_java
from millstream_operator.local.runtime import LocalRuntime

MANIFESTS = Path(__file__).parents[1] / "cluster"
TOPIC = "orders"
SAMPLE_EVERY_S = 0.05
IN_SYNC_S = 60.0
READ_S = 60.0


class Acknowledged(NamedTuple):
    """Number of records acknowledged ``seconds`` after publishing began."""

    seconds: float
    records: int


@dataclass(slots=True)
class Survived:
    """The result. Times are in seconds since publishing began."""

    published: Counter[str]
    read: Counter[str]
    broker: int
    """The killed broker."""
    killed_s: float
    restarted_s: float
    """When the killed broker was ready again."""
    samples: list[Acknowledged]
    silence: tuple[float, float]
    """Start and end of the longest time without a further acknowledgement that ended after the broker was killed."""

    @property
    def silence_s(self) -> float:
        return self.silence[1] - self.silence[0]


def lacking() -> str | None:
    """The missing requirements for this part."""
    try:
        find_java()
    except NotInstalled as error:
        return str(error)
    return None


def run(runtime: LocalRuntime, events: Iterable[Event], moved: Callable[[int], None]) -> Survived:
    """Raises RuntimeError if the local runtime fails, TimeoutError, KafkaException."""
    bootstrap = up(runtime)
    done = traffic.Traffic()
    watch = Watch(done.published)
    # before publishing begins, because it takes the publisher's time
    pids = {daemon["address"]: daemon["pid"] for daemon in runtime.status().daemons}
    with ThreadPoolExecutor(1) as aside:
        killed: list[tuple[int, float, Future[float]]] = []

        def restart() -> float:
            up(runtime)
            return watch.seconds

        def progress() -> None:
            if not killed and watch.count >= ROWS // 3:
                broker = kill_leader(bootstrap, pids)
                killed.append((broker, watch.seconds, aside.submit(restart)))
            moved(watch.count)

        watch.start()
        try:
            traffic.publish(bootstrap, TOPIC, events, done, progress)
        finally:
            watch.end()
        progress()
        ((broker, killed_s, restarted),) = killed
        restarted_s = restarted.result()
    await_in_sync(bootstrap)
    return Survived(
        done.published,
        read(bootstrap),
        broker,
        killed_s,
        restarted_s,
        watch.samples,
        longest_silence(watch.samples, killed_s),
    )


def up(runtime: LocalRuntime) -> str:
    """Apply the manifests of the cluster and its topic; return the bootstrap address."""
    outcome = runtime.up(MANIFESTS)
    for resource, problem in outcome.failures.items():
        raise RuntimeError(f"{resource}: {problem}")
    cluster = next(one for one in outcome.resources if one["kind"] == "Cluster")
    bootstrap: str = cluster["status"]["bootstrap"]
    return bootstrap


class Watch(Thread):
    """Samples the number of acknowledged records, until it is ended."""

    def __init__(self, acknowledged: Counter[str]) -> None:
        super().__init__(daemon=True)
        self._acknowledged = acknowledged
        self._begun = time.monotonic()
        self._ended = Flag()
        self.samples = [Acknowledged(0.0, 0)]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def count(self) -> int:
        return self._acknowledged.total()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            self.samples.append(Acknowledged(self.seconds, self.count))

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.samples.append(Acknowledged(self.seconds, self.count))


def longest_silence(samples: Sequence[Acknowledged], after_s: float) -> tuple[float, float]:
    """From the last sample before the longest time without progress to the first one after it.

    Only progress after ``after_s`` ends one: the first connections and batches take their time, too.
    """
    longest, since = (0.0, 0.0), samples[0]
    for sample in samples[1:]:
        if sample.records > since.records:
            if sample.seconds > after_s and sample.seconds - since.seconds > longest[1] - longest[0]:
                longest = (since.seconds, sample.seconds)
            since = sample
    return longest


def kill_leader(bootstrap: str, pids: Mapping[str, int]) -> int:
    """kill -9 the leader of the topic's first partition; return that broker's id. ``pids``: of brokers by address."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=10)
    leader = found.topics[TOPIC].partitions[0].leader
    address = f"{found.brokers[leader].host}:{found.brokers[leader].port}"
    if address not in pids:
        raise RuntimeError(f"broker {leader} at {address} is not of this data folder")
    os.kill(pids[address], signal.SIGKILL)
    return leader


def await_in_sync(bootstrap: str) -> None:
    admin, deadline = AdminClient({"bootstrap.servers": bootstrap}), time.monotonic() + IN_SYNC_S
    while True:
        partitions = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
        if all(len(one.isrs) == len(one.replicas) for one in partitions):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not every replica was in sync again within {IN_SYNC_S:.0f} s")
        time.sleep(0.1)


def read(bootstrap: str) -> Counter[str]:
    """All records of the topic by their keys."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-all", "log_level": 0})
    seen: Counter[str] = Counter()
    try:
        partitions = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        ends = {one: consumer.get_watermark_offsets(TopicPartition(TOPIC, one), 10)[1] for one in partitions}
        consumer.assign([TopicPartition(TOPIC, one, 0) for one in partitions])
        left, deadline = sum(ends.values()), time.monotonic() + READ_S
        while left > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left:,} records could not be read within {READ_S:.0f} s")
            for message in consumer.consume(5000, timeout=0.5):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                seen[(message.key() or b"").decode()] += 1
                left -= 1
    finally:
        consumer.close()
    return seen
