"""The example from topic to topic: its processes are killed while they work."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer

import millstream
from millstream.groups import committed_offsets
from millstream.topics import create_topic
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(200)]

EXAMPLE = Path(__file__).parents[2] / "examples/streams/exactly_once_kafka.py"
FLIGHTS = 6000
PARTITIONS = 4


def results(broker: InProcessBroker) -> Counter[str]:
    """Committed records by value."""
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "reader",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer, found = Consumer(config), Counter[str]()
    consumer.subscribe(["carriers"])
    while (message := consumer.poll(60)) is not None and message.error() is None:
        found[message.value().decode()] += 1
    consumer.close()
    return found


def test_each_message_has_one_result(start_broker: Callable[..., InProcessBroker]) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "flights", partitions=PARTITIONS)
    create_topic(cluster, "carriers", partitions=1)
    with millstream.Producer(cluster) as producer:
        for number in range(FLIGHTS):
            producer.send("flights", f"{number} UA", partition=number % PARTITIONS)

    def done() -> int:
        return sum(committed_offsets(cluster, "carriers").values())

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, EXAMPLE, broker.bootstrap, "flights", "carriers", name])

    names = ["one", "two"]
    processes = {name: start(name) for name in names}
    try:
        for killed in ("one", "two", "one"):
            before = done()
            until(lambda before=before: done() >= min(before + 300, FLIGHTS), "it goes on", 60)  # type: ignore[misc]
            processes[killed].kill()
            processes[killed].wait()
            processes[killed] = start(killed)
        until(lambda: done() == FLIGHTS, "everything is processed", 90)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert results(broker) == Counter(map(str, range(FLIGHTS)))
