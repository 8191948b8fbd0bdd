"""The demo's last part: the same flights through three brokers, one of which is killed on the way.

up       examples/cluster by the local runtime: three brokers and a ZooKeeper, a topic of three replicas
publish  acks=all; at a third of the way the leader of partition 0 gets SIGKILL
up       again, at once: what died is started, which elsewhere is Kubernetes' part
read     what was acknowledged is there, each record once, and every replica is in sync
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import traffic
from flights import ROWS, Event
from millstream_operator.local.java import NotInstalled, find_java
from millstream_operator.local.runtime import LocalRuntime

MANIFESTS = Path(__file__).parents[1] / "cluster"
TOPIC = "orders"
IN_SYNC_S = 60.0
READ_S = 60.0


@dataclass(slots=True)
class Survived:
    """What came of it."""

    published: Counter[str]
    read: Counter[str]
    broker: int
    """The one that was killed."""
    silence_s: float
    """The longest time without a further acknowledgement."""


def lacking() -> str | None:
    """Why it cannot be done here."""
    try:
        find_java()
    except NotInstalled as error:
        return str(error)
    return None


def run(runtime: LocalRuntime, events: Iterable[Event], moved: Callable[[int], None]) -> Survived:
    """Raises RuntimeError when the local runtime fails, TimeoutError, KafkaException."""
    bootstrap = up(runtime)
    done = traffic.Traffic()
    watch = Watch(done.published)
    with ThreadPoolExecutor(1) as aside:
        killed: list[tuple[int, Future[str]]] = []

        def progress() -> None:
            watch.look()
            if not killed and watch.count >= ROWS // 3:
                killed.append((kill_leader(runtime, bootstrap), aside.submit(up, runtime)))
            moved(watch.count)

        traffic.publish(bootstrap, TOPIC, events, done, progress)
        progress()
        (broker, restarted) = killed[0]
        restarted.result()
    await_in_sync(bootstrap)
    return Survived(done.published, read(bootstrap), broker, watch.longest_s)


def up(runtime: LocalRuntime) -> str:
    """Have the cluster and its topic as the manifests ask; where it listens."""
    outcome = runtime.up(MANIFESTS)
    for resource, problem in outcome.failures.items():
        raise RuntimeError(f"{resource}: {problem}")
    cluster = next(one for one in outcome.resources if one["kind"] == "Cluster")
    bootstrap: str = cluster["status"]["bootstrap"]
    return bootstrap


class Watch:
    """How long nothing more was acknowledged, at the longest."""

    def __init__(self, acknowledged: Counter[str]) -> None:
        self._acknowledged = acknowledged
        self._since = time.monotonic()
        self.count = 0
        self.longest_s = 0.0

    def look(self) -> None:
        now, count = time.monotonic(), self._acknowledged.total()
        if count > self.count:
            self.longest_s = max(self.longest_s, now - self._since)
            self._since, self.count = now, count


def kill_leader(runtime: LocalRuntime, bootstrap: str) -> int:
    """kill -9 to whoever leads the topic's first partition; which broker that was."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=10)
    leader = found.topics[TOPIC].partitions[0].leader
    address = f"{found.brokers[leader].host}:{found.brokers[leader].port}"
    for daemon in runtime.status().daemons:
        if daemon["address"] == address:
            os.kill(daemon["pid"], signal.SIGKILL)
            return leader
    raise RuntimeError(f"broker {leader} at {address} is none of this data folder")


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
