"""Kafka Streams with exactly_once_v2 counts each word once, while brokers and the application itself are killed."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.java import ROOT, fetched, java_command, running
from millstream_harness.scenario import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "frameworks" / "WordCount.java"
JARS = ROOT / ".jars" / "frameworks"
PARTITIONS = 3
WORDS = ("one", "two", "three", "four", "five", "six", "seven")
PAUSE_S = 0.005
"""Between two lines."""
LINES = 300
"""At least, before each kill; every line has two words."""
ARRIVAL_S = 240.0


def application(bootstrap: str, folder: Path) -> list[str]:
    """The command of the word count."""
    config = folder / "streams.properties"
    properties = {
        "bootstrap.servers": bootstrap,
        "application.id": "words",
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(folder / "state"),
        "statestore.cache.max.bytes": "0",  # each update of a count is a record
        "commit.interval.ms": "1000",
        "consumer.session.timeout.ms": "6000",
        "consumer.heartbeat.interval.ms": "1000",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return java_command(str(PROGRAM), str(config), "lines", "counts", classpath=f"{fetched(JARS)}/*")


class Counts:
    """The committed records of the topic of counts, by word, in the order of their partition."""

    def __init__(self, bootstrap: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"}
        self.consumer = Consumer({**config, "auto.offset.reset": "earliest", "log_level": 0})
        self.consumer.assign([TopicPartition("counts", number, 0) for number in range(PARTITIONS)])
        self.found: dict[str, list[int]] = defaultdict(list)

    def number(self) -> int:
        for message in self.consumer.consume(1000, timeout=0.5):
            if message.error() is None:
                self.found[message.key().decode()].append(int(message.value()))
        return sum(map(len, self.found.values()))


class Writer:
    """Writes lines until it is told to end, at a steady rate; ``words``: how often each word is in them."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        )
        self.words: Counter[str] = Counter()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for number in itertools.count():
            if self.ended.wait(PAUSE_S):
                return
            pair = WORDS[number % len(WORDS)], WORDS[number % 5]
            self.words.update(pair)
            self.producer.produce("lines", " ".join(pair), partition=number % PARTITIONS)
            self.producer.poll(0)

    def __enter__(self) -> Writer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        assert self.producer.flush(60) == 0


def test_each_word_is_counted_once(tmp_path: Path) -> None:
    """In each round, a broker or the application is killed in the middle of its work, and comes back."""
    with ClusterProcesses(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = [NewTopic(name, PARTITIONS, 3) for name in ("lines", "counts")]
        for created in admin.create_topics(wanted).values():
            created.result(60)
        counts = Counts(cluster.bootstrap)
        command, log = application(cluster.bootstrap, tmp_path), tmp_path / "log"

        def more() -> None:
            before = counts.number()
            eventually(counts.number, lambda now: now > before + 2 * LINES, "more counts", ARRIVAL_S)

        with Writer(cluster.bootstrap) as writer:
            for broker in cluster.brokers.values():
                with running(command, log):  # it is killed at the end
                    more()
                    broker.kill()
                    time.sleep(3)  # more than its session
                    broker.start()
                    more()
        total = sum(writer.words.values())
        with running(command, log):
            eventually(counts.number, lambda now: now >= total, f"{total} counts", ARRIVAL_S)
        assert counts.number() == total
        assert {word: len(found) for word, found in counts.found.items()} == writer.words
        assert all(found == list(range(1, len(found) + 1)) for found in counts.found.values())
        counts.consumer.close()
