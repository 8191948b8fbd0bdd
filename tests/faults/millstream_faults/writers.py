"""Producers: numbered records to every partition in turn, idempotent and acknowledged by all in-sync replicas."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from functools import partial

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream_harness.ledger import IDEMPOTENT, PATIENT

from .history import TOMBSTONE, UNKNOWN, Acknowledged, Failed, key_of, value_of
from .topics import PLANS, STEADY
from .worker import FINISH_S, GIVE_UP_MS, Worker

SIZE = 120
PAUSE_S = 0.03
"""Pause between a writer's records to one partition."""
MOST_UNDER_WAY = 200
"""Limit of unanswered records per partition, so that a partition without a leader does not hold up the others."""
FORGET_MS = 300_000
"""Time limit for records whose topic may be recreated."""


class Writer(Worker):
    """Uses librdkafka. Records of a compacted topic have keys, and some are tombstones."""

    def run(self) -> None:
        self.look_around()
        session = 0
        while not self.ending.is_set():
            Session(self, self.name if self.topic == STEADY else f"{self.name}.{session}").run()
            session += 1

    def failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.trouble(f"{error}")


class Session:
    """A producer for one topic id.

    librdkafka takes a recreated topic's leader epochs for outdated ones, and never finds its leaders.
    """

    def __init__(self, worker: Writer, who: str) -> None:
        self.worker, self.who = worker, who
        self.topic = worker.known.id
        self.numbers: dict[int, int] = defaultdict(int)
        self.under_way: dict[int, int] = defaultdict(int)
        self.producer = Producer(
            {
                **worker.librdkafka,
                **IDEMPOTENT,
                **PATIENT,
                "message.timeout.ms": str(GIVE_UP_MS if worker.topic == STEADY else FORGET_MS),
                "socket.timeout.ms": "5000",
                "linger.ms": "2",
                "error_cb": worker.failed,
            }
        )

    def run(self) -> None:
        while self.worker.wait(PAUSE_S) and self.worker.known.id == self.topic:
            for partition in range(self.worker.partitions):
                if self.under_way[partition] < MOST_UNDER_WAY:
                    self.send(partition)
            self.producer.poll(0)
            self.worker.flush_now_and_then()
        if not self.worker.ending.is_set():
            self.producer.purge()
        if left := self.producer.flush(FINISH_S):
            self.worker.trouble(f"{left} records without an answer after {FINISH_S:g} s")

    def send(self, partition: int) -> None:
        number = self.numbers[partition]
        is_compacted = PLANS[self.worker.topic].is_compacted
        key, is_tombstone = key_of(self.who, number) if is_compacted else (None, False)
        value = value_of(self.who, partition, number, SIZE)
        try:
            self.producer.produce(
                self.worker.topic,
                None if is_tombstone else value,
                key,
                partition,
                on_delivery=partial(self.told, number, time.monotonic()),
                headers={TOMBSTONE: value} if is_tombstone else None,
            )
        except KafkaException:
            if self.worker.topic == STEADY:
                raise
            return  # the topic or its partition is gone: the number stays free
        self.numbers[partition] += 1
        self.under_way[partition] += 1

    def told(self, number: int, sent: float, error: KafkaError | None, message: Message) -> None:
        now, partition, offset = time.monotonic(), message.partition(), message.offset()
        assert partition is not None
        self.under_way[partition] -= 1
        event: Acknowledged | Failed
        if error is not None:
            event = Failed(now, self.who, partition, number, str(error), self.topic, sent)
        else:
            at = UNKNOWN if offset is None else offset  # the broker reported a duplicate
            event = Acknowledged(now, self.who, partition, number, at, sent, self.topic)
        self.worker.history.add(event)


class AioWriter(Worker):
    """Uses aiokafka."""

    def run(self) -> None:
        asyncio.run(self.write())

    async def write(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            **({} if self.login is None else self.login.aiokafka),
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=GIVE_UP_MS,  # the time limit for retries
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
            self.history.add(Failed(now, self.name, partition, number, repr(error), self.known.id, sent))
        else:
            offset: int = future.result().offset  # type: ignore[attr-defined]
            self.history.add(Acknowledged(now, self.name, partition, number, offset, sent, self.known.id))
