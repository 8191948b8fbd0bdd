"""Promotions of an Identity mirror's topics under load, by one operator after another.

    create a topic, mirror it under load   its producers go on writing to the source until the end
    request its promotion                  an operator may end before or after any of its writes
    kill                                   leaders and workers, between the request and its end
    the next operator                      ends the promotion; producers write to the target meanwhile and after that
    all workers leave the topic alone      the source has more records by then

The operator is its own code; Kubernetes is in memory (`promoting`). When it ends, all that it has done is in Kubernetes
and in the target, so an end before or after one of its writes stands for an end at any time.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from millstream_harness.cluster import until
from millstream_harness.daemon import Daemon
from millstream_harness.ledger import IDEMPOTENT, PATIENT, Load, check
from millstream_harness.mirror import MirrorProcess
from millstream_harness.mirror_groups import commit, committed
from millstream_harness.mortal import Died, Life
from millstream_harness.promoting import World
from millstream_harness.scenario import eventually
from millstream_kafka.batch import read_header, read_records
from millstream_operator.kafka.mirror_records import group_of
from millstream_operator.kafka.mirrored import notes_of
from millstream_operator.kafka.records import AdminError

from .checks import Log, read_log
from .lab import BACK_S, GROUP, IDENTITY, PROMOTED, Lab

PARTITIONS, LOOK_S = 2, 0.2
BEFORE, AFTER = 20, 100
"""Records of a load: of producers of the source before a request, of those of the target behind it."""
THEIRS, OURS, PROBE = "source", "own", b"probe:"
NOT_OURS = rb"(source|probe):.*"
DONE = "Done"
MOST_WRITES = 4
"""An operator writes three times: that it begins, the topic's setting, that it is done."""


def mirrored_end(copy: Log) -> int:
    """Where the first record begins that the source's producers have not written; the end if there is none."""
    own = (offset for offset, batch in copy.at.items() if not _is_theirs(batch))
    return min(own, default=copy.end)


def overwritten(source: Log, copy: Log) -> str:
    """How a promoted partition differs from records of the source, and behind them its own ones only."""
    end, expected = mirrored_end(copy), copy.start
    for offset, batch in copy.at.items():
        if offset > expected:
            return f"there is no batch at offset {expected}"
        expected = read_header(batch).next_offset
        if offset >= end and _is_theirs(batch):
            return f"a batch of the source is at offset {offset}, behind the promotion at {end}"
        if offset < end and source.at.get(offset) != batch:
            return f"the batch at offset {offset} is not the source's"
    return ""


def _is_theirs(batch: bytes) -> bool:
    return any((record.value or b"").startswith(b"source:") for record in read_records(batch))


@dataclass(frozen=True)
class Point:
    """The recovery point of a partition. ``end``: of mirrored records; when the promotion ended, the source's log ended
    between ``least`` and ``most``."""

    end: int
    least: int
    most: int


def misreported_point(last: Mapping[str, Any], points: Sequence[Point]) -> str:
    """How a record of a promotion of one topic differs from what was promoted."""
    (row,) = last["topics"]
    ends, there = row["ends"], row["sourceEnds"]
    if ends != [point.end for point in points]:
        return f"ends {ends} are reported, {[point.end for point in points]} are true"
    if len(there) != len(points) or not all(
        point.least <= end <= point.most for point, end in zip(points, there, strict=True)
    ):
        return f"the source's ends {there} ({row['sourceEndsFrom']}) are reported, true are {points}"
    if row["sourceEndsFrom"] == "Source" and any(
        end < point.end for point, end in zip(points, there, strict=True)
    ):
        return f"the source's ends {there} are reported, though records up to {ends} were mirrored"
    missing = sum(max(0, end - point.end) for point, end in zip(points, there, strict=True))
    if not row["notMirrored"] == last["notMirrored"] == missing:
        return (
            f"{row['notMirrored']} and {last['notMirrored']} records are reported as missing, {missing} are"
        )
    return ""


@dataclass
class Promoted:
    """A topic: what is sent to it in the source and, since its promotion, in the target."""

    topic: str
    theirs: Load
    ours: Load | None = None
    positions: list[int] = field(default_factory=list)
    """Of the group in the target, when the promotion had ended."""


class Promotions:
    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self._lab = lab
        self._chance = chance
        self._world = World(
            lab.east.bootstrap, IDENTITY, lab.west.bootstrap, topics={"include": [f"{PROMOTED}.*"]}
        )
        self._done: list[Promoted] = []

    def close(self) -> None:
        self._world.close()
        for one in self._done:
            for load in filter(None, (one.theirs, one.ours)):
                load.stop()

    def promote(self, seconds: float) -> dict[str, Callable[[], str]]:
        """Returns what must hold at the end of the round. Raises AssertionError for what is wrong by then."""
        lab, topic = self._lab, f"{PROMOTED}{len(self._done)}"
        lab.create(topic, PARTITIONS)
        theirs = Load(lab.west.bootstrap, topic, partitions=range(PARTITIONS), name=THEIRS, pause_s=0.01)
        self._done.append(one := Promoted(topic, theirs.start()))
        theirs.until(BEFORE * PARTITIONS, BACK_S)
        until(lambda: all(log.batches for log in self._logs(topic)), f"{topic} is mirrored", BACK_S)
        noted = eventually(lambda: self._noted(topic), lambda ends: len(ends) == PARTITIONS, "notes", BACK_S)
        victims = self._victims(topic)
        least = self._least(topic, noted, [])
        self._world.ask(request := f"request-{topic}", topic)
        writes, after = self._chance.randint(1, MOST_WRITES), self._chance.random() < 0.5
        last = self._look(request, Life(writes, after=after))
        for victim in victims:
            victim.kill()
        time.sleep(seconds)
        if last.get("state") != DONE:
            least = self._least(topic, noted, victims)
        if self._is_writable(topic):  # though no operator says so yet
            one.ours = self._write(topic)
        last = self._end_of_promotion(request)
        row = last["topics"][0]
        print(
            f"   {topic}: operator ends {'after' if after else 'before'} write {writes};"
            f" killed: {', '.join(str(victim.folder.relative_to(lab.out)) for victim in victims)};"
            f" mirrored {row['ends']} of {row['sourceEnds']} ({row['sourceEndsFrom']})",
            flush=True,
        )
        self._restart(victims)
        most = [read_log(lab.west, topic, number).end for number in range(PARTITIONS)]
        one.ours = one.ours or self._write(topic)
        self._await_workers(topic)
        one.positions = committed(lab.east, GROUP, topic)
        commit(lab.west, GROUP, topic, *most)
        one.ours.until(one.ours.ledger.count + AFTER, BACK_S)
        for load in (theirs, one.ours):
            load.stop()
        points = [
            Point(mirrored_end(log), *between)
            for log, between in zip(self._logs(topic), zip(least, most, strict=True), strict=True)
        ]
        said = misreported_point(last, points)
        assert not said, f"{topic}: {said}"
        return self.checks()

    def checks(self) -> dict[str, Callable[[], str]]:
        """Of all topics that were promoted so far."""
        return {f"{one.topic}, promoted": partial(self._wrong, one) for one in self._done if one.ours}

    def _wrong(self, one: Promoted) -> str:
        assert one.ours is not None
        for number, copy in enumerate(self._logs(one.topic)):
            if said := overwritten(read_log(self._lab.west, one.topic, number), copy):
                return f"partition {number}: {said}"
        check(self._lab.east.bootstrap, one.topic, [one.ours], ignore=NOT_OURS)
        if failed := one.ours.ledger.failed:
            return f"not acknowledged: {failed}"
        now = committed(self._lab.east, GROUP, one.topic)
        return "" if now == one.positions else f"the group's positions went from {one.positions} to {now}"

    # ---- between the request and its end

    def _victims(self, topic: str) -> list[Daemon]:
        lab = self._lab
        leader, other = self._chance.choice((0, 1)), self._chance.choice(lab.workers)
        victims: Sequence[Daemon] = self._chance.choice(
            (
                [lab.east.leader(topic, leader)],
                [other],
                [lab.east.leader(topic, leader), other],
                [lab.west.leader(topic, leader), *lab.workers],
                [*lab.west.brokers.values()],
                [lab.east.leader(topic, leader), *lab.workers],
            )
        )
        return [*victims]

    def _restart(self, victims: Sequence[Daemon]) -> None:
        if all(broker in victims for broker in self._lab.west.brokers.values()):
            self._lab.west.start()
        for victim in victims:
            if victim.process is None:
                victim.start()
        self._lab.west.await_in_sync(self._done[-1].topic, timeout=BACK_S)

    def _look(self, request: str, life: Life) -> dict[str, Any]:
        """What one operator does until it ends; what it leaves as the record of the request."""
        with contextlib.suppress(Died):
            self._world.look(life)
        last: dict[str, Any] = self._world.manifest.get("status", {}).get("lastPromotion", {})
        return last if last.get("requestId") == request else {}

    def _is_writable(self, topic: str) -> bool:
        try:
            return self._world.writable(topic) == [True]
        except (AdminError, KeyError):
            return False

    def _least(self, topic: str, noted: list[int], victims: Sequence[Daemon]) -> list[int]:
        """Ends of the source that an operator must know: its own, unless it does not answer: then those that workers
        had noted."""
        if any(broker in victims for broker in self._lab.west.brokers.values()):
            return noted
        return [read_log(self._lab.west, topic, number).end for number in range(PARTITIONS)]

    def _end_of_promotion(self, request: str) -> dict[str, Any]:
        deadline = time.monotonic() + BACK_S
        while True:
            last = self._look(request, Life())
            if last.get("state") == DONE:
                return last
            assert time.monotonic() < deadline, (
                f"the promotion does not end: {last}, {self._world.condition()}"
            )
            time.sleep(LOOK_S)

    def _write(self, topic: str) -> Load:
        """Begin to write to the target once all leaders know that they may take records."""
        lab = self._lab
        for number in range(PARTITIONS):
            until(partial(self._is_taken, topic, number), f"{topic} takes records", BACK_S)
        load = Load(lab.east.bootstrap, topic, partitions=range(PARTITIONS), name=OURS, pause_s=0.01)
        load.start().until(AFTER, BACK_S)
        return load

    def _is_taken(self, topic: str, number: int) -> bool:
        errors: list[KafkaError | None] = []

        def told(error: KafkaError | None, _: Message) -> None:
            errors.append(error)

        producer = Producer({"bootstrap.servers": self._lab.east.bootstrap, **IDEMPOTENT, **PATIENT})
        producer.produce(topic, PROBE, partition=number, on_delivery=told)
        producer.flush(BACK_S)
        return errors == [None]

    def _await_workers(self, topic: str) -> None:
        """Until each worker leaves the topic alone, and the source has records since."""

        def left_alone(worker: MirrorProcess) -> bool:
            with contextlib.suppress(OSError):
                said = worker.status()["sources"][0]
                return topic in said["promoted"] and topic not in said["topicNames"]
            return False

        workers = [worker for worker in self._lab.workers if worker.config["name"] == IDENTITY]
        until(lambda: all(map(left_alone, workers)), f"workers leave {topic} alone", BACK_S)
        theirs = self._done[-1].theirs
        theirs.until(theirs.ledger.count + BEFORE, BACK_S)

    def _logs(self, topic: str) -> list[Log]:
        return [read_log(self._lab.east, topic, number) for number in range(PARTITIONS)]

    def _noted(self, topic: str) -> list[int]:
        """The ends of the source that workers have noted in the target."""
        group = group_of(IDENTITY, "west")
        notes = notes_of(self._world.admin, [group])[group]
        return [note.source_end for where, note in sorted(notes.items()) if where.topic == topic]
