"""The exactly-once example with SQLite: its processes are killed while they work."""

from __future__ import annotations

import importlib
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import millstream
from millstream.groups import describe_group
from millstream.topics import create_topic, delete_topics
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "examples/streams/exactly_once.py"
CARRIERS = ("UA", "AA", "B6", "DL")


def counted(path: Path) -> Counter[str]:
    database = sqlite3.connect(path, timeout=30)
    try:
        return Counter(dict(database.execute("SELECT carrier, flights FROM carriers").fetchall()))
    except sqlite3.OperationalError:  # no process has made the table yet
        return Counter()
    finally:
        database.close()


def shares(cluster: millstream.Cluster) -> list[int]:
    """How many partitions each process owns."""
    return [len(member.partitions) for member in describe_group(cluster, "carriers").members]


def test_each_message_counts_once(start_broker: Callable[..., InProcessBroker], tmp_path: Path) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "flights", partitions=4)
    path, dice, sent = tmp_path / "flights.db", random.Random(7), Counter[str]()

    def send(flights: int) -> None:
        with millstream.Producer(cluster) as producer:
            for number in range(flights):
                carrier = dice.choice(CARRIERS)
                sent[carrier] += 1
                producer.send("flights", f"{carrier} {number}", partition=number % 4)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(EXAMPLE), broker.bootstrap, "flights", str(path)])

    send(2000)
    processes = [start(), start()]
    try:
        for _ in range(3):
            enough = counted(path).total() + 50
            until(lambda enough=enough: counted(path).total() >= enough, "it counts", 90)
            processes[0].kill()
            processes.pop(0).wait()
            processes.append(start())
            send(500)
        until(lambda: counted(path).total() >= sent.total(), "all is counted", 120)
        assert counted(path) == sent
        until(lambda: shares(cluster) == [2, 2], "both processes own partitions", 120)
        for process in processes:
            process.terminate()
            assert process.wait(60) == 0
        processes.clear()
        delete_topics(cluster, ["flights"])
        create_topic(cluster, "flights", partitions=4)
        send(40)
        processes.append(start())
        until(lambda: counted(path).total() >= sent.total(), "what is in the new topic is counted, too", 120)
        assert counted(path) == sent
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_message_that_another_process_has_counted_changes_nothing(
    start_broker: Callable[..., InProcessBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner still holds a message that the new owner counts, too."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    store_of = importlib.import_module("exactly_once").Store
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    cluster = millstream.Cluster(broker.bootstrap)
    create_topic(cluster, "flights", partitions=1)
    with millstream.Producer(cluster) as producer:
        producer.send("flights", "UA 1")
        producer.send("flights", "AA 2")
    with millstream.connect(cluster, group="g", value_deserializer=millstream.Text()) as connector:
        (stream,) = connector.create_message_streams({"flights": 1})["flights"]
        first, second = islice(stream, 2)
    path = tmp_path / "flights.db"
    slow, owner = store_of(str(path), "id"), store_of(str(path), "id")
    for store, message in ((owner, first), (slow, first), (owner, second), (slow, second), (slow, first)):
        store.count(message)
    assert counted(path) == {"UA": 1, "AA": 1}
    assert slow.positions([("flights", 0), ("flights", 1)]) == {("flights", 0): 2, ("flights", 1): 0}
    for store in (slow, owner):
        store._database.close()
