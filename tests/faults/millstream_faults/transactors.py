"""Writers and readers of transactions, with librdkafka: lists of values, copies of them, and readers of both kinds.

A transactor appends values to several lists in each transaction, reads what others committed meanwhile, and sometimes
aborts, exceeds its time limit and goes on, or gets a successor with its transactional id while it is in a transaction.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream_harness.ledger import PATIENT

from .history import NEVER, Transacted, parse_value, value_of
from .probe import Known
from .topics import COPIES
from .transacted import COPIERS, PEEKER, PER_TRANSACTION, READER
from .violations import ABORTED, COMMITTED
from .worker import FINISH_S, Worker

UNKNOWN_OUTCOME = "unknown"
SIZE = 100
PAUSE_S = 0.1
TIMEOUT_MS = 10_000
CALL_S = 5.0
END_S = 240.0
"""Limit for the end of a transaction while faults last; ZooKeeper may be away for a minute."""
HANGS_S = 30.0
"""How long librdkafka may take for a call whose time limit is `CALL_S`."""
FIRST_NUMBER_AT = 1_790_000_000
MOST_VALUES = 5
MOST_COPIED = 50
ABORTING, IDLING, SUCCEEDED = 0.15, 0.02, 0.04
"""Parts of the transactions that are aborted, exceed their time limit, and get a successor."""


@dataclass(slots=True)
class Open:
    """A transaction that a writer is in."""

    number: int
    appends: list[list[str | int]] = field(default_factory=list)
    reads: list[list[str | int]] = field(default_factory=list)
    asked: float = NEVER


class Transactional(Worker):
    """The producer's life, shared by transactors and copiers."""

    producer: Producer | None = None

    def __init__(self, name: str, history: Path, bootstrap: str, topic: str, known: Known) -> None:
        super().__init__(name, history, bootstrap, topic, known)
        self._transactions = int((time.time() - FIRST_NUMBER_AT) * 10)
        """The last one's number, higher than those of a process that was replaced by this one."""
        self._kept: list[Producer] = []
        """librdkafka may crash, or never finish, when it closes a producer that was fenced."""

    def started(self) -> Producer | None:
        """A producer with this worker's transactional id; None at the end of the run."""
        while not self.ending.is_set():
            producer = Producer(
                {
                    **self.librdkafka,
                    **PATIENT,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": str(TIMEOUT_MS),
                    "message.timeout.ms": str(TIMEOUT_MS),
                    "socket.timeout.ms": "5000",
                    "linger.ms": "2",
                }
            )
            self._kept.append(producer)
            while not self.ending.is_set():
                try:
                    producer.init_transactions(CALL_S)
                except KafkaException as error:
                    if not error.args[0].retriable():
                        break
                else:
                    return producer
            self.wait(PAUSE_S)
        return None

    def leave(self) -> NoReturn:
        """End the process without closing anything."""
        self.history.close()
        os._exit(0)

    def begun(self) -> Open:
        assert self.producer is not None
        self._transactions += 1
        self.producer.begin_transaction()
        return Open(self._transactions)

    def end(self, producer: Producer, transaction: Open, commits: bool) -> str:
        """Commit or abort, whatever happens; return the outcome. Without a producer that can go on, drop it."""
        outcome = self._end(producer, transaction, commits)
        self.ended(transaction, outcome)
        return outcome

    def ended(self, transaction: Open, outcome: str) -> None:
        self.history.add(
            Transacted(
                time.monotonic(),
                self.name,
                transaction.number,
                outcome,
                transaction.asked,
                transaction.appends,
                transaction.reads,
            )
        )

    def _end(self, producer: Producer, transaction: Open, commits: bool) -> str:
        deadline = time.monotonic() + END_S
        if commits:
            transaction.asked = time.monotonic()
        while time.monotonic() < deadline:
            try:
                if commits:
                    producer.commit_transaction(CALL_S)
                    return COMMITTED
                producer.abort_transaction(CALL_S)
                return ABORTED
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if error.txn_requires_abort():
                    commits = False
                elif not error.retriable():
                    break
        else:
            self.trouble(f"transaction {transaction.number} did not end in {END_S:g} s")
        if producer is self.producer:
            self.producer = None
        return ABORTED if transaction.asked == NEVER else UNKNOWN_OUTCOME

    def read_value(self, transaction: Open, message: Message) -> None:
        writer, partition, number = parse_value(message.value() or b"")
        transaction.reads.append([self.known.id, writer, partition, number])

    def append(
        self, producer: Producer, transaction: Open, topic: tuple[str, str], writer: str, at: int, number: int
    ) -> None:
        """Add a value to a partition of a topic, named with its id."""
        name, identity = topic
        transaction.appends.append([identity, writer, at, number])
        with contextlib.suppress(KafkaException):  # the end of the transaction tells it, too
            producer.produce(name, value_of(writer, at, number, SIZE), partition=at)
            producer.poll(0)


class Transactor(Transactional):
    def run(self) -> None:
        consumer = self.consumer("transactor", {"isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        while self.wait(PAUSE_S):
            self.producer = self.producer or self.started()
            if self.producer is not None:
                self.transact(self.producer, consumer)
            self.flush_now_and_then()
        self.leave()

    def transact(self, producer: Producer, consumer: Consumer) -> None:
        transaction = self.begun()
        self.fill(producer, transaction)
        for message in consumer.consume(MOST_COPIED, 0.02):
            if self.saw(f"{READER}{self.name}", message) is not None:
                self.read_value(transaction, message)
        drawn = random.random()
        if drawn < ABORTING:
            producer.flush(random.choice((0.0, CALL_S)))
            self.end(producer, transaction, commits=False)
        elif drawn < ABORTING + IDLING:
            producer.flush(CALL_S)
            self.wait(random.choice((1.0, 1.5)) * TIMEOUT_MS / 1000)
            self.fill(producer, transaction)
            self.end(producer, transaction, commits=True)
        elif drawn < ABORTING + IDLING + SUCCEEDED:
            producer.flush(random.choice((0.0, CALL_S)))
            self.producer = self.started()
            self.fill(producer, transaction)  # it is a zombie now
            self.end(producer, transaction, commits=True)
        else:
            self.end(producer, transaction, commits=True)

    def fill(self, producer: Producer, transaction: Open) -> None:
        for _ in range(random.randint(1, MOST_VALUES)):
            number = transaction.number * PER_TRANSACTION + len(transaction.appends)
            at = random.randrange(self.partitions)
            self.append(producer, transaction, (self.topic, self.known.id), self.name, at, number)


class Copier(Transactional):
    """Copies each value of its topic to COPIES, with its position in the same transaction (KIP-447)."""

    def run(self) -> None:
        consumer = self.consumer(
            COPIERS,
            {
                "isolation.level": "read_committed",
                "session.timeout.ms": "6000",
                "heartbeat.interval.ms": "500",
                "auto.offset.reset": "earliest",
            },
        )
        target = asyncio.run(self.target())
        self.signals, woken = os.pipe()
        for end in (self.signals, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(
            woken, warn_on_full_buffer=False
        )  # a handler does not run while librdkafka hangs
        consumer.subscribe([self.topic], on_revoke=self.moved, on_lost=self.moved)
        while not self.ending.is_set():
            self.producer = self.producer or self.started()
            if self.producer is None:
                break
            self.is_moved = False
            first = consumer.poll(0.2)
            if first is not None:
                self.copy(self.producer, consumer, target, first)
            self.flush_now_and_then()
        self.leave()

    async def target(self) -> str:
        """The id of COPIES."""
        async with self.probe() as probe:
            while not self.ending.is_set():
                if (found := await probe.topic(COPIES)) is not None:
                    return found.id
                await asyncio.sleep(PAUSE_S)
        return ""

    def moved(self, *_: object) -> None:
        self.is_moved = True

    def copy(self, producer: Producer, consumer: Consumer, target: str, first: Message) -> None:
        transaction = self.begun()
        position: dict[int, int] = {}
        deadline = time.monotonic() + PAUSE_S
        writer = f"{self.name}/{transaction.number}"
        message: Message | None = first
        while not self.is_moved:
            if message is not None and (offset := message.offset()) is not None:
                if (error := message.error()) is not None:
                    self.saw_error(self.name, error)
                else:
                    at = message.partition() or 0
                    self.read_value(transaction, message)
                    self.append(producer, transaction, (COPIES, target), writer, at, offset)
                    position[at] = offset + 1
            if len(transaction.appends) >= MOST_COPIED or time.monotonic() > deadline:
                break  # before the next message is taken
            message = consumer.poll(0.02)
        commits = not self.is_moved and bool(position)
        if commits:
            offsets = [TopicPartition(self.topic, at, offset) for at, offset in position.items()]
            commits = self.send_positions(producer, consumer, transaction, offsets)
        if self.end(producer, transaction, commits) != COMMITTED:
            self.go_back(consumer)

    def send_positions(
        self, producer: Producer, consumer: Consumer, transaction: Open, offsets: list[TopicPartition]
    ) -> bool:
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        watchdog = threading.Timer(HANGS_S, self.begin_again, (transaction,))
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._send_positions(producer, consumer, offsets, deadline)
        finally:
            watchdog.cancel()

    def begin_again(self, transaction: Open) -> None:
        """Replace the process by a new one: librdkafka waits for ever if the group's coordinator is lost, whatever
        the time limit (its issue 5456)."""
        self.ended(transaction, ABORTED)
        with contextlib.suppress(BlockingIOError):
            if self.ending.is_set() or os.read(self.signals, 1):
                self.leave()
        self.history.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", f"{__package__}.workers", *sys.argv[1:]])

    def _send_positions(
        self, producer: Producer, consumer: Consumer, offsets: list[TopicPartition], deadline: float
    ) -> bool:
        while time.monotonic() < deadline:
            try:
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    return False
            else:
                return True
        return False

    def go_back(self, consumer: Consumer) -> None:
        """Read again from the positions that are committed, if the partitions are still ours."""
        while not self.ending.is_set():
            try:
                mine = consumer.assignment()
                found = consumer.committed(mine, timeout=CALL_S) if mine else []
                for one in found:
                    if one.error is not None:
                        raise KafkaException(one.error)
                for one in found:
                    consumer.seek(TopicPartition(one.topic, one.partition, max(one.offset, 0)))
            except KafkaException:
                consumer.poll(0)  # a rebalance may take the partitions
                time.sleep(0.05)
            else:
                return


class ListReader(Worker):
    """Reads every value from start to end, at the isolation that its name tells."""

    def run(self) -> None:
        isolation = "read_committed" if self.name.startswith(READER) else "read_uncommitted"
        assert isolation == "read_committed" or self.name.startswith(PEEKER)
        more = {"isolation.level": isolation, "enable.partition.eof": "true"}
        consumer = self.consumer("lists", more)
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
        position = dict.fromkeys(range(self.partitions), 0)
        ends: dict[int, int] = {}
        deadline = float("inf")
        while not ends or any(position[partition] < end for partition, end in ends.items()):
            if self.ending.is_set() and not ends:
                deadline = time.monotonic() + FINISH_S
                ends = {partition: self.end(partition) for partition in position}
            if time.monotonic() > deadline:
                self.trouble(f"read to {position} of {ends} in {FINISH_S:g} s")
                break
            for message in consumer.consume(500, 0.2):
                at, offset = message.partition() or 0, message.offset()
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    position[at] = max(position[at], offset or 0)
                elif (following := self.saw(self.name, message)) is not None:
                    position[at] = following
            self.flush_now_and_then()
        consumer.close()

    def end(self, partition: int) -> int:
        """The high watermark: what is committed must reach it, because every transaction ends."""
        consumer = self.consumer("lists", {"isolation.level": "read_uncommitted"})
        try:
            while True:
                with contextlib.suppress(KafkaException):
                    return consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=5)[1]
                time.sleep(0.1)
        finally:
            consumer.close()
