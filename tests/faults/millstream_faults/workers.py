"""The clients, each in a process of its own, which write all that they are told into the history.

    python -m millstream_faults.workers ROLE NAME HISTORY BOOTSTRAP TOPIC PARTITIONS

writer        librdkafka, idempotent: numbered records to every partition in turn
aiowriter     the same with aiokafka
member        librdkafka in the group: reads, and commits what it has read
reader        librdkafka, reads every partition from its begin to its end
rereader      librdkafka, reads short stretches anywhere, again and again
watcher       asks for the group's committed offsets all the time

SIGTERM ends them: writers wait for what is under way, readers read to the end that there is then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream_harness.ledger import IDEMPOTENT, PATIENT

from .checker import GROUP
from .history import (
    UNKNOWN,
    Acknowledged,
    Committed,
    CommitUnknown,
    Failed,
    FoundCommitted,
    HistoryWriter,
    Read,
    Trouble,
    parse_value,
    value_of,
)

SIZE = 120
PAUSE_S = 0.03
"""Between two records of a writer to one partition."""
MOST_UNDER_WAY = 200
"""Records of a partition without an answer, so that one partition without a leader does not hold up the others."""
GIVE_UP_MS = 600_000
FINISH_S = 90.0
FLUSH_S = 0.5
COMMIT_S = 0.4
REREAD = 300

CONSUMER = {
    **{key: value for key, value in PATIENT.items() if key != "message.timeout.ms"},
    "retry.backoff.max.ms": "200",
    "check.crcs": "true",
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": "100",
    "socket.timeout.ms": "5000",
    "topic.metadata.refresh.interval.ms": "2000",
}


class Worker:
    """What they share: the end, the history, and the partitions."""

    def __init__(self, name: str, history: Path, bootstrap: str, topic: str, partitions: int) -> None:
        self.name, self.bootstrap, self.topic, self.partitions = name, bootstrap, topic, partitions
        self.history = HistoryWriter(history)
        self.ending = threading.Event()
        self._flushed = 0.0

    def run(self) -> None:
        """Until ``ending`` is set."""
        raise AssertionError(f"{type(self).__name__} does nothing")

    def wait(self, seconds: float) -> bool:
        """Wait so long; False when it is time to end."""
        return not self.ending.wait(seconds)

    def trouble(self, text: str) -> None:
        self.history.add(Trouble(time.monotonic(), self.name, text))

    def flush_now_and_then(self) -> None:
        if time.monotonic() - self._flushed > FLUSH_S:
            self._flushed = time.monotonic()
            self.history.flush()

    def consumer(self, group: str, more: Mapping[str, str] | None = None) -> Consumer:
        return Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **CONSUMER, **(more or {})})

    def saw(self, who: str, message: Message) -> int | None:
        """Write down what a consumer was given; the offset that follows it."""
        error = message.error()
        if error is not None:
            self.saw_error(who, error)
            return None
        offset, partition = message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        writer, written_to, number = parse_value(message.value() or b"")
        if written_to != partition:
            writer, number = f"?{writer} of {written_to}", -1
        self.history.add(Read(time.monotonic(), who, partition, offset, writer, number))
        return offset + 1

    def saw_error(self, who: str, error: KafkaError) -> None:
        """Brokers may be away; the log must not be."""
        bad = (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError._LOG_TRUNCATION,
            KafkaError._BAD_MSG,
            KafkaError._FATAL,
            KafkaError.OFFSET_OUT_OF_RANGE,
        )
        if error.code() in bad or error.fatal():
            self.trouble(f"{who}: {error}")


class Writer(Worker):
    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                **IDEMPOTENT,
                **PATIENT,
                "message.timeout.ms": str(GIVE_UP_MS),
                "socket.timeout.ms": "5000",
                "linger.ms": "2",
                "error_cb": self.failed,
            }
        )
        numbers = dict.fromkeys(range(self.partitions), 0)
        under_way: dict[int, int] = defaultdict(int)
        while self.wait(PAUSE_S):
            for partition in range(self.partitions):
                if under_way[partition] < MOST_UNDER_WAY:
                    number = numbers[partition]
                    told = partial(self.told, under_way, number, time.monotonic())
                    value = value_of(self.name, partition, number, SIZE)
                    producer.produce(self.topic, value, partition=partition, on_delivery=told)
                    numbers[partition] += 1
                    under_way[partition] += 1
            producer.poll(0)
            self.flush_now_and_then()
        if left := producer.flush(FINISH_S):
            self.trouble(f"{left} records without an answer {FINISH_S:g} s after the last fault")

    def failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.trouble(f"{error}")

    def told(
        self, under_way: dict[int, int], number: int, sent: float, error: KafkaError | None, message: Message
    ) -> None:
        now, partition, offset = time.monotonic(), message.partition(), message.offset()
        assert partition is not None
        under_way[partition] -= 1
        if error is not None:
            self.history.add(Failed(now, self.name, partition, number, str(error)))
        else:
            at = UNKNOWN if offset is None else offset  # the broker said that it is a repetition
            self.history.add(Acknowledged(now, self.name, partition, number, at, sent))


class AioWriter(Worker):
    def run(self) -> None:
        asyncio.run(self.write())

    async def write(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=GIVE_UP_MS,  # which is how long it tries
            retry_backoff_ms=50,
            metadata_max_age_ms=2000,
            linger_ms=2,
        )
        while True:
            with contextlib.suppress(AioKafkaError):
                await producer.start()
                break
            await asyncio.sleep(0.1)
        await asyncio.gather(*(self.fill(producer, partition) for partition in range(self.partitions)))
        try:
            async with asyncio.timeout(FINISH_S):
                await producer.stop()
        except TimeoutError:
            self.trouble(f"records without an answer {FINISH_S:g} s after the last fault")

    async def fill(self, producer: AIOKafkaProducer, partition: int) -> None:
        under_way = asyncio.Semaphore(MOST_UNDER_WAY)
        number = 0
        while not self.ending.is_set():
            await asyncio.sleep(PAUSE_S)
            if under_way.locked():
                continue
            await under_way.acquire()
            sent = time.monotonic()
            value = value_of(self.name, partition, number, SIZE)
            future = await producer.send(self.topic, value, partition=partition)
            future.add_done_callback(partial(self.told, under_way, partition, number, sent))
            number += 1
            self.flush_now_and_then()

    def told(
        self,
        under_way: asyncio.Semaphore,
        partition: int,
        number: int,
        sent: float,
        future: asyncio.Future[object],
    ) -> None:
        now = time.monotonic()
        under_way.release()
        if error := future.exception():
            self.history.add(Failed(now, self.name, partition, number, repr(error)))
        else:
            offset: int = future.result().offset  # type: ignore[attr-defined]
            self.history.add(Acknowledged(now, self.name, partition, number, offset, sent))


class Reader(Worker):
    def run(self) -> None:
        session, ends = 0, dict.fromkeys(range(self.partitions), -1)
        position = dict.fromkeys(ends, 0)
        deadline = float("inf")
        consumer = self.consumer("reader")
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in position])
        while any(position[partition] < end for partition, end in ends.items()) or not self.ending.is_set():
            if self.ending.is_set() and deadline == float("inf"):
                deadline = time.monotonic() + FINISH_S
                ends = {partition: self.end(consumer, partition) for partition in ends}
            if time.monotonic() > deadline:
                self.trouble(f"read to {position} of {ends} in {FINISH_S:g} s")
                break
            for message in consumer.consume(500, 0.2):
                following = self.saw(f"{self.name}#{session}", message)
                if following is not None:
                    position[message.partition() or 0] = following
            self.flush_now_and_then()
        consumer.close()

    def end(self, consumer: Consumer, partition: int) -> int:
        while True:
            with contextlib.suppress(KafkaException):
                return consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=5)[1]
            time.sleep(0.1)


class Rereader(Worker):
    def run(self) -> None:
        session = 0
        consumer = self.consumer("rereader")
        while self.wait(0.5):
            partition = random.randrange(self.partitions)
            with contextlib.suppress(KafkaException):
                at = TopicPartition(self.topic, partition)
                low, high = consumer.get_watermark_offsets(at, timeout=2)
                start = random.choice([low, max(low, high - REREAD), random.randint(low, high)])
                session += 1
                self.stretch(consumer, f"{self.name}#{session}", partition, start, min(high, start + REREAD))
            self.flush_now_and_then()
        self.history.close()
        os._exit(0)  # librdkafka may close for ever what was assigned anew a hundred times

    def stretch(self, consumer: Consumer, who: str, partition: int, position: int, end: int) -> None:
        deadline = time.monotonic() + 5  # whoever leads may be away
        consumer.assign([TopicPartition(self.topic, partition, position)])
        while position < end and time.monotonic() < deadline and not self.ending.is_set():
            for message in consumer.consume(100, 0.1):
                if (following := self.saw(who, message)) is not None:
                    position = following
        consumer.unassign()


class Member(Worker):
    session = 0

    def run(self) -> None:
        self.position: dict[int, int] = {}
        consumer = self.consumer(GROUP, {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"})
        consumer.subscribe([self.topic], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)
        committed = time.monotonic()
        while not self.ending.is_set():
            # One by one: a batch may have been begun before a rebalance that is told of within the call.
            message = consumer.poll(0.1)
            if message is not None and (following := self.saw(self.who, message)) is not None:
                self.position[message.partition() or 0] = following
            if time.monotonic() - committed > COMMIT_S:
                self.commit(consumer)
                committed = time.monotonic()
            self.flush_now_and_then()
        self.commit(consumer)
        consumer.close()

    @property
    def who(self) -> str:
        return f"{self.name}#{self.session}"

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.session += 1
        self.position = {}
        for one in found_committed(self, self.who, consumer, partitions):
            self.position[one.partition] = max(one.offset, 0)
        consumer.assign(
            [TopicPartition(self.topic, partition, at) for partition, at in self.position.items()]
        )

    def revoked(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        self.commit(consumer)
        self.position = {}

    def lost(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.position = {}

    def commit(self, consumer: Consumer) -> None:
        wanted = [TopicPartition(self.topic, partition, at) for partition, at in self.position.items()]
        if not wanted:
            return
        begun = time.monotonic()
        try:
            answers = consumer.commit(offsets=wanted, asynchronous=False) or []
        except KafkaException:
            answers = []
        kept = {one.partition for one in answers if one.error is None}
        for one in wanted:
            if one.partition in kept:
                event: Committed | CommitUnknown
                event = Committed(time.monotonic(), self.who, one.partition, one.offset)
            else:
                event = CommitUnknown(begun, self.who, one.partition, one.offset)
            self.history.add(event)


class Watcher(Worker):
    def run(self) -> None:
        consumer = self.consumer(GROUP)
        wanted = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        while self.wait(0.5):
            found_committed(self, self.name, consumer, wanted)
            self.flush_now_and_then()
        consumer.close()


def found_committed(
    worker: Worker, who: str, consumer: Consumer, wanted: list[TopicPartition]
) -> list[TopicPartition]:
    """The group's offsets, as soon as its coordinator answers; nothing when it is time to end."""
    while not worker.ending.is_set():
        asked = time.monotonic()
        try:
            found = consumer.committed(wanted, timeout=3)
        except KafkaException:
            time.sleep(0.05)
            continue
        if all(one.error is None for one in found):
            for one in found:
                at = max(one.offset, -1)
                worker.history.add(FoundCommitted(time.monotonic(), who, one.partition, at, asked))
            return found
    return []


ROLES: Mapping[str, Callable[[str, Path, str, str, int], Worker]] = {
    "writer": Writer,
    "aiowriter": AioWriter,
    "member": Member,
    "reader": Reader,
    "rereader": Rereader,
    "watcher": Watcher,
}


def main() -> None:
    role, name, history, bootstrap, topic, partitions = sys.argv[1:]
    worker = ROLES[role](name, Path(history), bootstrap, topic, int(partitions))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: worker.ending.set())
    try:
        worker.run()
    except Exception as error:
        worker.trouble(f"ended with {error!r}")
        raise
    finally:
        worker.history.close()


if __name__ == "__main__":
    main()
