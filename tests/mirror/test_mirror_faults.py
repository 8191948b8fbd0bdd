"""The mirror worker under faults: no record is lost or repeated, and order holds, whichever process is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from millstream_harness.broker import BrokerProcess
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce, read_batches
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import read_records

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
StartBrokerProcess = Callable[..., BrokerProcess]
PARTITIONS = 2


def pinned(broker: BrokerProcess) -> BrokerProcess:
    """Fix its address, so that it keeps it over a restart."""
    broker.config["listeners"] = f"PLAINTEXT://{broker.bootstrap}"
    return broker


class Feed:
    """Produces small batches in a thread: thousands of records a second, below the maximum."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._stopping = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            more = range(self._count, self._count + 400 * PARTITIONS)
            produce(self._broker, self._topic, more, PARTITIONS, batch_num_messages=7, linger_ms=1)
            self._count = more.stop

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def feed() -> Iterator[Callable[..., Feed]]:
    feeds: list[Feed] = []

    def start(broker: BrokerProcess, topic: str) -> Feed:
        feeds.append(Feed(broker, topic))
        return feeds[-1]

    yield start
    for one in feeds:
        one.stop()


def values(broker: BrokerProcess, topic: str, partition: int) -> list[bytes | None]:
    batches = asyncio.run(read_batches(broker.bootstrap, topic, partition))
    return [record.value for batch in batches for record in read_records(batch)]


def same_content(source: BrokerProcess, target: BrokerProcess, topic: str) -> None:
    wanted = [values(source, topic, partition) for partition in range(PARTITIONS)]
    arrived(target, topic, [len(of_partition) for of_partition in wanted], 90)
    assert [values(target, topic, partition) for partition in range(PARTITIONS)] == wanted


def wait_for_more(mirror: MirrorProcess) -> None:
    wanted = mirror.records() + 200
    eventually(mirror.records, lambda count: count > wanted, "records written")


def test_repeated_kills_of_worker_lose_no_record(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror, feed: Callable[..., Feed]
) -> None:
    topic, name = unique("killed"), unique("killed")
    create(west, topic, PARTITIONS)
    feeding = feed(west, topic)
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name)
    for _ in range(4):
        eventually(mirror.records, lambda count: count > 200, "records written")
        time.sleep(random.uniform(0, 0.4))  # anywhere between two commits
        mirror.kill()
        mirror.start()
    feeding.stop()
    same_content(west, east, topic)
    assert 'renumbered_partitions_total{source="west"} 0' in mirror.get("/metrics")


def test_paused_worker_repeats_no_record(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror, feed: Callable[..., Feed]
) -> None:
    topic, name = unique("zombie"), unique("zombie")
    create(west, topic, PARTITIONS)
    feeding = feed(west, topic)
    config: dict[str, Any] = {"topics": {"include": [topic]}, "name": name}
    zombie = start_mirror({"west": west.bootstrap}, east.bootstrap, **config)
    eventually(zombie.records, lambda count: count > 200, "records written by the first")
    os.kill(zombie.pid, signal.SIGSTOP)
    other = start_mirror({"west": west.bootstrap}, east.bootstrap, **config)
    eventually(other.records, lambda count: count > 200, "records written by the second", 90)
    os.kill(zombie.pid, signal.SIGCONT)
    eventually(
        lambda: [one.status()["sources"][0]["partitions"] for one in (zombie, other)],
        lambda shares: shares == [1, 1],
        "partitions of each",
        90,
    )
    feeding.stop()
    same_content(west, east, topic)


@pytest.mark.parametrize("victim", ["source", "target"])
def test_killed_broker_loses_no_record(
    start_broker_process: StartBrokerProcess,
    start_mirror: StartMirror,
    feed: Callable[..., Feed],
    victim: str,
) -> None:
    config = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"}
    source, target = pinned(start_broker_process(config)), pinned(start_broker_process(config))
    create(source, "t", PARTITIONS)
    feeding = feed(source, "t")
    mirror = start_mirror({"west": source.bootstrap}, target.bootstrap)
    for _ in range(2):
        wait_for_more(mirror)
        if victim == "source":
            source.kill()
            status = eventually(
                lambda: mirror.status()["sources"][0], lambda one: not one["reachable"], "source unreachable"
            )
            assert source.bootstrap in status["lastError"]
            assert mirror.get("/healthz") == "ok\n"
            source.start()
            eventually(lambda: mirror.status()["sources"][0], lambda one: one["reachable"], "source back")
        else:
            target.kill()
            target.start()
    feeding.stop()
    same_content(source, target, "t")
    assert 'renumbered_partitions_total{source="west"} 0' in mirror.get("/metrics")


def test_source_missing_at_start_is_mirrored_later(
    west: BrokerProcess,
    east: BrokerProcess,
    start_broker_process: StartBrokerProcess,
    start_mirror: StartMirror,
) -> None:
    topic = unique("late")
    absent = pinned(start_broker_process())
    create(absent, topic)
    produce(absent, topic, range(50))
    absent.stop()
    create(west, topic)
    produce(west, topic, range(100, 150))
    sources = {"absent": absent.bootstrap, "west": west.bootstrap}
    mirror = start_mirror(sources, east.bootstrap, topics={"include": [topic]})
    arrived(east, topic, [50])
    states = {one["name"]: one["reachable"] for one in mirror.status()["sources"]}
    assert states == {"absent": False, "west": True}
    absent.start()
    arrived(east, topic, [100])


def test_deleted_source_records_are_counted_and_reported(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror
) -> None:
    topic, name = unique("gap"), unique("gap")
    create(west, topic)
    produce(west, topic, range(100))
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name)
    arrived(east, topic, [100])
    assert mirror.stop() == 0
    produce(west, topic, range(100, 200))
    part = TopicPartition(topic, 0, 150)
    admin(west).delete_records([part])[part].result(20)
    mirror.start()
    arrived(east, topic, [150])
    assert f"{topic}-0: the source deleted offsets 100 to 149 before they were mirrored" in mirror.said()
    assert 'missing_records_total{source="west"} 50' in mirror.get("/metrics")
    assert values(east, topic, 0) == [b"value-%d" % number for number in (*range(100), *range(150, 200))]
    mirror.kill()
    mirror.start()
    produce(west, topic, range(200, 210))
    arrived(east, topic, [160])
    gap = {"partition": f"{topic}-0", "from": 100, "until": 150, "stopped": False}
    assert mirror.status()["sources"][0]["gaps"] == [gap], "kept with the progress, by whichever worker"


def test_partition_stops_at_gap_until_user_decides(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror
) -> None:
    topic, name = unique("stops"), unique("stops")
    create(west, topic, 2)
    produce(west, topic, range(100), 2)
    topics = {"include": [topic]}
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics=topics, name=name, onGap="Stop")
    arrived(east, topic, [50, 50])
    assert mirror.stop() == 0
    produce(west, topic, range(100, 200), 2)
    part = TopicPartition(topic, 0, 70)
    admin(west).delete_records([part])[part].result(20)
    mirror.start()
    gap = {"partition": f"{topic}-0", "from": 50, "until": 70, "stopped": True}
    eventually(lambda: mirror.status()["sources"][0]["gaps"], lambda now: now == [gap], "the gap")
    said = (
        f"{topic}-0: the source deleted offsets 50 to 69 before they were mirrored: mirroring of this partition"
        " stopped: set onGap to SkipToEarliest to continue"
    )
    assert mirror.status()["sources"][0]["lastError"] == said
    produce(west, topic, range(200, 300), 2)
    arrived(east, topic, [50, 150])
    assert mirror.said().count(said) == 1
    mirror.stop()
    mirror.config["onGap"] = "SkipToEarliest"
    mirror.start()
    arrived(east, topic, [130, 150])
    assert values(east, topic, 0) == [
        b"value-%d" % number for number in (*range(0, 100, 2), *range(140, 300, 2))
    ]


def test_recreated_source_topic_waits_for_removal_of_copy(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror
) -> None:
    topic, name = unique("remade"), unique("remade")
    create(west, topic)
    produce(west, topic, range(20))
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=name)
    arrived(east, topic, [20])
    assert mirror.stop() == 0
    admin(west).delete_topics([topic])[topic].result(20)
    create(west, topic)
    produce(west, topic, range(100, 130))
    mirror.start()
    waits_for_the_copy(mirror, topic)
    arrived(east, topic, [20])
    mirror.kill()
    mirror.start()
    waits_for_the_copy(mirror, topic)
    assert values(east, topic, 0) == [b"value-%d" % number for number in range(20)]
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [30])
    assert values(east, topic, 0) == [b"value-%d" % number for number in range(100, 130)]
    eventually(lambda: mirror.status()["sources"][0]["replaced"], lambda now: now == [], "the new topic")
    assert mirror.status()["sources"][0]["lastError"] == ""
    mirror.kill()
    mirror.start()
    produce(west, topic, range(130, 140))
    arrived(east, topic, [40])
    assert mirror.status()["sources"][0]["replaced"] == []


def test_topic_recreated_during_mirroring_delays_no_other(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror
) -> None:
    topic, other = unique("remade"), unique("other")
    for name in (topic, other):
        create(west, name)
        produce(west, name, range(20))
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic, other]}, name=unique("remade")
    )
    for name in (topic, other):
        arrived(east, name, [20])
    admin(west).delete_topics([topic])[topic].result(20)
    create(west, topic)
    produce(west, topic, range(100, 105))  # fewer than the old topic had: the worker is beyond its end
    waits_for_the_copy(mirror, topic)
    produce(west, other, range(20, 40))
    arrived(east, other, [40])
    assert values(east, topic, 0) == [b"value-%d" % number for number in range(20)]
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [5])
    assert values(east, topic, 0) == [b"value-%d" % number for number in range(100, 105)]


SELDOM = (
    "import sys; from millstream_mirror import main, source; source.REFRESH_S = source.NEW_REFRESH_S = 600.0;"
    " sys.argv[1:] = sys.argv[2:]; sys.exit(main.main())"
)
"""Starts a worker that checks the source's topics once, so that everything below happens between two of its checks."""


@pytest.mark.parametrize("while_paused", [False, True])
def test_larger_recreated_topic_is_not_appended(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror, while_paused: bool
) -> None:
    """The new topic has records behind the old one's end. The worker finds them in a fetch, not in a check."""
    topic = unique("remade")
    create(west, topic)
    produce(west, topic, range(3))
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        name=unique("remade"),
        entering=(sys.executable, "-c", SELDOM),
    )
    arrived(east, topic, [3])
    if while_paused:
        mirror.pause()
        time.sleep(0.5)  # so that no fetch is waiting at the broker
    try:
        admin(west).delete_topics([topic])[topic].result(20)
        create(west, topic)
        produce(west, topic, range(100, 150))
    finally:
        mirror.resume()
    waits_for_the_copy(mirror, topic)
    assert values(east, topic, 0) == [b"value-0", b"value-1", b"value-2"]
    admin(east).delete_topics([topic])[topic].result(20)
    create(east, topic)
    arrived(east, topic, [50])
    assert values(east, topic, 0) == [b"value-%d" % number for number in range(100, 150)]


def waits_for_the_copy(mirror: MirrorProcess, topic: str) -> None:
    eventually(
        lambda: mirror.status()["sources"][0]["replaced"], lambda now: now == [topic], "the replaced topic"
    )
    assert mirror.status()["sources"][0]["lastError"] == (
        f"{topic}-0: topic {topic} was deleted and created again in the source: its records are not appended to those"
        f" of the old topic: delete topic {topic} in the target to mirror the new one, or exclude {topic}"
    )


PATIENT = (
    "import sys; from millstream_mirror import main, source; from millstream_mirror.partitions import pipeline;"
    " pipeline.DRAIN_S = source.DRAIN_S = 60.0;"
    " sys.argv[1:] = sys.argv[2:]; sys.exit(main.main())"
)
"""Starts a worker that, when it stops, gives up no response and no commit, however slow the machine is."""


def test_stopped_worker_continues_without_repeating(
    west: BrokerProcess, east: BrokerProcess, start_mirror: StartMirror, feed: Callable[..., Feed]
) -> None:
    topic, name = unique("stopped"), unique("stopped")
    create(west, topic, PARTITIONS)
    feeding = feed(west, topic)
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        name=name,
        entering=(sys.executable, "-c", PATIENT),
    )
    eventually(mirror.records, lambda count: count > 200, "records written")
    assert mirror.stop() == 0
    mirror.start()
    feeding.stop()
    same_content(west, east, topic)
    assert 'repeated_records_total{source="west"} 0' in mirror.get("/metrics")
