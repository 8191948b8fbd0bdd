"""Kafka Streams with exactly_once_v2 counts each word once, while brokers and the application itself are killed."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.java import ROOT, fetched, java_command
from millstream_harness.scenario import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "frameworks" / "WordCount.java"
JARS = ROOT / ".jars" / "frameworks"
PARTITIONS = 3
WORDS = ("one", "two", "three", "four", "five", "six", "seven")
ROUNDS = 6
PAUSE_S = 0.005
"""Between two lines."""
LINES = 300
"""At least, before each kill; every line has two words."""
ARRIVAL_S = 240.0


class Application:
    """The word count, as a process that can be killed."""

    def __init__(self, cluster: ClusterProcesses, folder: Path) -> None:
        self.log = folder / "streams.log"
        config = folder / "streams.properties"
        properties = {
            "bootstrap.servers": cluster.bootstrap,
            "application.id": "words",
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(folder / "state"),
            "statestore.cache.max.bytes": "0",  # each update of a count is a record
            "commit.interval.ms": "1000",
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1000",
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.command = java_command(
            str(PROGRAM), str(config), "lines", "counts", classpath=f"{fetched(JARS)}/*"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=file)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running(application: Application) -> Iterator[None]:
    application.start()
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{application.log.read_text()[-5000:]}") from None
    finally:
        application.kill()


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
        application, counts = Application(cluster, tmp_path), Counts(cluster.bootstrap)
        with running(application):
            with Writer(cluster.bootstrap) as writer:
                for number in range(1, ROUNDS + 1):
                    before = counts.number()
                    more = before + 2 * LINES
                    eventually(counts.number, lambda now, more=more: now > more, "more counts", ARRIVAL_S)
                    if number % 2:
                        broker = cluster.brokers[1 + number // 2]
                        broker.kill()
                        time.sleep(3)  # more than its session
                        broker.start()
                    else:
                        application.kill()
                        application.start()
            total = sum(writer.words.values())
            eventually(counts.number, lambda now: now >= total, f"{total} counts", ARRIVAL_S)
        assert counts.number() == total
        assert {word: len(found) for word, found in counts.found.items()} == writer.words
        assert all(found == list(range(1, len(found) + 1)) for found in counts.found.values())
        counts.consumer.close()
