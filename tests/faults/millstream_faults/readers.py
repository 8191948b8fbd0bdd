"""Consumers of STEADY: they read every record, some of them twice, and commit positions as a group."""

from __future__ import annotations

import contextlib
import os
import random
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .checker import GROUP
from .history import Committed, CommitUnknown, FoundCommitted
from .worker import FINISH_S, Worker

COMMIT_S = 0.4
REREAD = 300


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
        os._exit(0)  # librdkafka may never finish closing a consumer that was reassigned a hundred times

    def stretch(self, consumer: Consumer, who: str, partition: int, position: int, end: int) -> None:
        deadline = time.monotonic() + 5  # the leader may be away
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
            # One record a time: a larger call may return records from before a rebalance that it reports.
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
                event = Committed(time.monotonic(), self.who, one.partition, one.offset, self.known.id, begun)
            else:
                event = CommitUnknown(begun, self.who, one.partition, one.offset, self.known.id)
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
    """The group's offsets, once its coordinator responds; nothing at the end of the run."""
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
                event = FoundCommitted(time.monotonic(), who, one.partition, at, asked, worker.known.id)
                worker.history.add(event)
            return found
    return []
