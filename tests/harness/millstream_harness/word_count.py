"""Applications count words of topic ``lines`` in topic ``counts`` exactly once, while they and brokers are killed."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .cluster import ClusterProcesses
from .java import running
from .scenario import eventually

PARTITIONS = 3
WORDS = ("one", "two", "three", "four", "five", "six", "seven")
PAUSE_S = 0.005
"""Between two lines."""
LINES = 300
"""At least, before each kill; every line has two words."""
ARRIVAL_S = 240.0


class Counts:
    """The committed records of the topic of counts, by word, in the order of their partition."""

    def __init__(self, bootstrap: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed"}
        self.consumer = Consumer({**config, "auto.offset.reset": "earliest", "log_level": 0})
        self.consumer.assign([TopicPartition("counts", number, 0) for number in range(PARTITIONS)])
        self.found: dict[str, list[int]] = defaultdict(list)

    def number(self) -> int:
        for message in self.consumer.consume(1000, timeout=0.5):
            word, count = message.key(), message.value()
            if message.error() is None and word is not None and count is not None:
                self.found[word.decode()].append(int(count))
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


def counts_each_word_once(folder: Path, application: Callable[[str], list[str]]) -> None:
    """Run the application's command for a bootstrap address on three brokers; it is asked for before each start.

    In each round, a broker and then the application are killed in the middle of their work. Raises AssertionError if
    a count is missing, repeated or out of order.
    """
    with ClusterProcesses(folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = [NewTopic(name, PARTITIONS, 3) for name in ("lines", "counts")]
        for created in admin.create_topics(wanted).values():
            created.result(60)
        counts = Counts(cluster.bootstrap)
        log = folder / "log"

        def more() -> None:
            before = counts.number()
            eventually(counts.number, lambda now: now > before + 2 * LINES, "more counts", ARRIVAL_S)

        with Writer(cluster.bootstrap) as writer:
            for broker in cluster.brokers.values():
                with running(application(cluster.bootstrap), log):  # it is killed at the end
                    more()
                    broker.kill()
                    time.sleep(3)  # more than its session
                    broker.start()
                    more()
        total = sum(writer.words.values())
        with running(application(cluster.bootstrap), log):
            eventually(counts.number, lambda now: now >= total, f"{total} counts", ARRIVAL_S)
        assert counts.number() == total
        assert {word: len(found) for word, found in counts.found.items()} == writer.words
        assert all(found == list(range(1, len(found) + 1)) for found in counts.found.values())
        counts.consumer.close()
