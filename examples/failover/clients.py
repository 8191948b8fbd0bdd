"""A producer and a consumer that move from one cluster to another, and remember each record."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from account import Place, Read

TOPIC, GROUP = "orders", "shop"
A_SECOND = 2500
"""Records that the producer sends in a second."""
MOST_WAITING = 50_000
"""Number of unacknowledged records at which the producer pauses."""
COMMIT_EVERY_S = 0.5
ANSWER_S = 20.0
AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""Errors that a client reports while its cluster is down. It reconnects by itself."""


class Client(Thread, ABC):
    """Works until it is stopped; `check` raises the error that ended it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stopping, self._done = Event(), Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self._error = error
        self._done.set()
        self.close()

    @abstractmethod
    def work(self) -> None:
        """Produce or consume until `_stopping` is set."""

    def close(self) -> None:
        """Close the connections in the background: while its cluster is down, a consumer needs a minute."""

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopping.set()
        self._done.wait()
        self.check()


class Orders(Client):
    """The producer: sends numbered records at a steady rate, and keeps the ones without an acknowledgement."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.acknowledged: list[dict[int, Place]] = [{}]
        """The place of each record, in one dictionary for each cluster in turn."""
        self.waiting: dict[int, None] = {}
        """Records sent and not yet acknowledged."""
        self.sent = 0
        self._goal: str | None = bootstrap

    def move(self, bootstrap: str) -> None:
        """Continue with another cluster, and first send it the records that the previous one has not acknowledged."""
        self._goal = bootstrap

    def work(self) -> None:
        producer: Any = None
        begun = time.monotonic()
        while not self._stopping.is_set():
            if self._goal is not None:
                bootstrap, self._goal = self._goal, None
                if producer is not None:
                    producer.purge()
                    producer.flush(ANSWER_S)
                    self.acknowledged.append({})
                producer = Producer(
                    {
                        "bootstrap.servers": bootstrap,
                        "enable.idempotence": True,
                        "linger.ms": 5,
                        "log_level": 0,
                    }
                )
                for number in [*self.waiting]:
                    self._send(producer, number)
            due = int((time.monotonic() - begun) * A_SECOND)
            while self.sent < due and len(self.waiting) < MOST_WAITING:
                self.waiting[self.sent] = None
                self._send(producer, self.sent)
                self.sent += 1
            producer.poll(0.005)
        if producer.flush(ANSWER_S):
            raise TimeoutError(f"not all records were acknowledged within {ANSWER_S:.0f} s")

    def _send(self, producer: Any, number: int) -> None:
        acknowledged = self.acknowledged[-1]

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                acknowledged[number] = (message.partition(), message.offset())
                self.waiting.pop(number, None)
            elif error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                raise KafkaException(error)

        producer.produce(TOPIC, b"%d" % number, key=b"customer-%d" % (number % 97), on_delivery=delivered)


class Shop(Client):
    """A consumer of the group: consumes records, then commits its positions, about twice a second."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self.joined = Event()
        """It has got its partitions."""
        self.consumed: list[Read] = []

    def work(self) -> None:
        self._consumer.subscribe([TOPIC], on_assign=lambda *_: self.joined.set())
        committed = time.monotonic()
        while not self._stopping.is_set():
            self.consumed += map(as_read, checked(self._consumer.consume(500, timeout=0.1)))
            if time.monotonic() - committed > COMMIT_EVERY_S:
                with suppress(KafkaException):  # nothing was consumed since
                    self._consumer.commit(asynchronous=True)
                committed = time.monotonic()

    def close(self) -> None:
        self._consumer.close()


def read_all(bootstrap: str) -> dict[Place, int]:
    """All records of the topic, by place."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-all", "log_level": 0})
    found: dict[Place, int] = {}
    try:
        numbers = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        marks = {one: consumer.get_watermark_offsets(TopicPartition(TOPIC, one), 10) for one in numbers}
        consumer.assign([TopicPartition(TOPIC, one, first) for one, (first, _) in marks.items()])
        left, deadline = sum(end - first for first, end in marks.values()), time.monotonic() + ANSWER_S
        while len(found) < left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"read {len(found):,} of {left:,} records within {ANSWER_S:.0f} s")
            found |= map(as_read, checked(consumer.consume(5000, timeout=0.2)))
    finally:
        consumer.close()
    return found


def checked(messages: list[Any]) -> list[Any]:
    """The messages that are records. Raises KafkaException, but not for errors from which a client recovers."""
    for message in messages:
        if (error := message.error()) is not None and error.code() not in AWAY:
            raise KafkaException(error)
    return [message for message in messages if message.error() is None]


def as_read(message: Any) -> Read:
    return (message.partition(), message.offset()), int(message.value())
