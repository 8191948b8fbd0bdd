"""Compares acknowledgements of producers with the log: no acknowledged record is lost, repeated or out of order.

    with Load(bootstrap, topic, partitions=3) as load:      produces until the block ends, then waits for the rest
        ...                                                 kill, fill, cut off: any fault to survive
    check(bootstrap, topic, [load])

A record's value is ``NAME:NUMBER:`` and padding. Each load numbers its records by partition, and keeps a ledger with
the offset of every acknowledged record. `check` reads the whole topic and requires:

- every acknowledged record is at its acknowledged offset;
- the numbers of a load ascend in a partition, each at most once (idempotent producers; a record without a
  response may be in the log or not);
- offsets have no gaps, and every record belongs to a load.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

FINISH_S = 60.0
IDEMPOTENT = {"enable.idempotence": "true", "acks": "all"}
# Tests that kill brokers need clients to reconnect at once.
PATIENT = {
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "100",
    "retry.backoff.ms": "20",
    "retry.backoff.max.ms": "200",
    "message.timeout.ms": "120000",
    "socket.timeout.ms": "10000",
    "log_level": "0",
}


@dataclass(slots=True)
class Ledger:
    """Sent and acknowledged records of one load, by partition."""

    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    acknowledged: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Offsets by number."""
    failed: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return sum(len(one) for one in self.acknowledged.values())


class Load:
    """A producer in a thread that sends numbered records to each partition in turn until it is stopped."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: Iterable[int] = (0,),
        name: str = "load",
        size: int = 200,
        pause_s: float = 0.0,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.topic, self.name = topic, name
        self.ledger = Ledger()
        self._partitions = tuple(partitions)
        self._padding = b"x" * size
        self._pause_s = pause_s
        self._config = {
            "bootstrap.servers": bootstrap,
            "linger.ms": "1",
            "batch.size": "16384",
            **IDEMPOTENT,
            **PATIENT,
            **(config or {}),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._broken: BaseException | None = None

    def start(self) -> Load:
        self._thread.start()
        return self

    def stop(self) -> Ledger:
        """Stop, wait for records in flight, and return the ledger; raises the thread's error."""
        self._stop.set()
        self._thread.join()
        if self._broken is not None:
            raise self._broken
        return self.ledger

    def until(self, count: int, timeout: float = FINISH_S) -> None:
        """Wait until this many records are acknowledged."""
        deadline = time.monotonic() + timeout
        while self.ledger.count < count:
            assert self._thread.is_alive(), f"{self.name} ended: {self._broken!r}"
            assert time.monotonic() < deadline, f"{self.name}: {self.ledger.count} of {count} acknowledged"
            time.sleep(0.005)

    def __enter__(self) -> Load:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None and self._broken is not None:
            raise self._broken

    def _run(self) -> None:
        try:
            producer = Producer(self._config)
            while not self._stop.is_set():
                for partition in self._partitions:
                    self._send(producer, partition)
                producer.poll(self._pause_s)
            left = producer.flush(FINISH_S)
            assert not left, f"{self.name}: {left} records without an answer after {FINISH_S} s"
        except BaseException as error:  # passed on to the test's thread
            self._broken = error

    def message(self, number: int) -> dict[str, Any]:
        """What the producer sends as record ``number`` of a partition."""
        return {"value": b"%s:%d:%s" % (self.name.encode(), number, self._padding)}

    def _send(self, producer: Producer, partition: int) -> None:
        number = self.ledger.sent[partition]
        message = self.message(number)

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.ledger.failed.append(f"{self.topic}-{partition} {number}: {error}")
            else:
                offset = message.offset()
                assert offset is not None
                self.ledger.acknowledged[partition][number] = offset

        while not self._stop.is_set():
            try:
                producer.produce(self.topic, partition=partition, on_delivery=told, **message)
            except BufferError:
                producer.poll(0.05)
                continue
            self.ledger.sent[partition] = number + 1
            return


def check(
    bootstrap: str,
    topic: str,
    loads: Iterable[Load],
    *,
    ignore: bytes | None = None,
    timeout: float = FINISH_S,
) -> dict[int, int]:
    """Compare the topic with the ledgers; returns the number of records by partition, or raises AssertionError.

    ``ignore`` is a pattern: records whose value it matches are the test's own.
    """
    ledgers = {load.name: load.ledger for load in loads}
    partitions = sorted({partition for ledger in ledgers.values() for partition in ledger.sent})
    problems: list[str] = []
    found: dict[int, int] = {}
    for partition in partitions:
        offsets: dict[str, dict[int, int]] = {name: {} for name in ledgers}
        last = dict.fromkeys(ledgers, -1)
        expected = 0
        for offset, value in read(bootstrap, topic, partition, timeout=timeout):
            where = f"{topic}-{partition} offset {offset}"
            if offset != expected:
                problems.append(f"{where}: follows {expected - 1}")
            expected = offset + 1
            if ignore is not None and re.fullmatch(ignore, value):
                continue
            name, number = _parse(value)
            if name not in ledgers:
                problems.append(f"{where}: nobody's record: {value[:40]!r}")
                continue
            if number in offsets[name]:
                problems.append(
                    f"{where}: {name} {number} is here a second time, first at {offsets[name][number]}"
                )
            elif number <= last[name]:
                problems.append(f"{where}: {name} {number} comes after {last[name]}")
            last[name] = max(last[name], number)
            offsets[name].setdefault(number, offset)
        for name, ledger in ledgers.items():
            for number, offset in ledger.acknowledged[partition].items():
                if offsets[name].get(number) != offset:
                    at = offsets[name].get(number, "nowhere")
                    problems.append(
                        f"{topic}-{partition}: {name} {number} was acknowledged at {offset}, is {at}"
                    )
        found[partition] = expected
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:20])
    return found


def _parse(value: bytes) -> tuple[str, int]:
    name, _, rest = value.partition(b":")
    number = rest.partition(b":")[0]
    return name.decode(errors="replace"), int(number) if number.isdigit() else -1


def read(bootstrap: str, topic: str, partition: int, *, timeout: float = FINISH_S) -> list[tuple[int, bytes]]:
    """Offset and value of every record in a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ledger",
            "enable.auto.commit": "false",
            "log_level": "0",
        }
    )
    records: list[tuple[int, bytes]] = []
    try:
        deadline = time.monotonic() + timeout
        low, end = _bounds(consumer, TopicPartition(topic, partition), deadline)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while low < end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: read {low} of {end} in {timeout} s"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                assert error is None or error.retriable(), error
                offset = message.offset()
                if error is None and offset is not None:
                    records.append((offset, message.value() or b""))
                    low = offset + 1
    finally:
        consumer.close()
    return records


def _bounds(consumer: Consumer, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=5)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return low, high
