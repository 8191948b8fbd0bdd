"""A mirror between two brokers: our worker, or MirrorMaker 2.

Both copy all topics whose names begin with "bench-", and the positions of groups with such names. MirrorMaker 2 checks
topics and groups every second, as our worker does, and compresses with the codec of the data in batches of their size;
two tasks share the partitions, one for each core here. On Apache Kafka both log in by SCRAM-SHA-512, without TLS; the
benchmark's own clients do not. MirrorMaker 2 has one mode, and is configured alike beside each of ours.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from millstream_bench import perf, process, wire
from millstream_bench.peers import KAFKA, MILLSTREAM, MIRRORMAKER2, Peer
from millstream_harness.mirror import MirrorProcess
from millstream_harness.mirrormaker2 import PAIR, MirrorMaker2Process
from millstream_harness.secured_kafka import PASSWORD, SCRAM, SCRAM_MODULE, USER

NAMES = "bench-.*"
GROUP = "bench-group"
POLL_S, RETRY_S = 0.005, 0.1
ARRIVAL_S = 600.0
AGGREGATE, IDENTITY = "Aggregate", "Identity"
MECHANISM = SCRAM[1]
NAMED = {MILLSTREAM: "Millstream", KAFKA: "Apache Kafka"}
MIRRORMAKER2_CONFIG = {
    f"{PAIR}.topics": NAMES,
    f"{PAIR}.groups": NAMES,
    "tasks.max": "2",
    "target.producer.compression.type": "lz4",
    "target.producer.batch.size": "65536",
}


Mirror: TypeAlias = MirrorProcess | MirrorMaker2Process


@dataclass(frozen=True, slots=True)
class Route:
    """How our worker mirrors (``mode``), and between which kinds of brokers."""

    mode: str = AGGREGATE
    source: str = MILLSTREAM
    target: str = MILLSTREAM

    @property
    def config(self) -> Mapping[str, str]:
        """Of both brokers. Workers join groups in the target, so the brokers' default delays count in the time to the
        first record; except Kafka's, which would delay either mirror by these three seconds."""
        return {"group.initial.rebalance.delay.ms": "0" if self.target == KAFKA else "3000"}

    @property
    def title(self) -> str:
        if KAFKA not in (self.source, self.target):
            return f"mode {self.mode}"
        return f"mode {self.mode}, SCRAM, {NAMED[self.source]} to {NAMED[self.target]}"


@dataclass(frozen=True, slots=True)
class Ends:
    """Both brokers of a route, started."""

    route: Route
    source: Peer
    target: Peer

    def worker(self, name: str, folder: Path) -> Mirror:
        """Our worker, or MirrorMaker 2, not started."""
        if name == MIRRORMAKER2:
            return self._mirrormaker2(folder)
        return self.our_worker(folder)

    def our_worker(self, folder: Path) -> MirrorProcess:
        folder.mkdir(parents=True, exist_ok=True)
        selected = {"include": [NAMES]}
        return MirrorProcess(
            folder,
            {"source": _address(self.source)},
            _address(self.target),
            security={
                name: _security(folder)
                for name, end in (("source", self.source), ("target", self.target))
                if end.login_address
            },
            topics=selected,
            groups=selected,
            name="bench",
            mode=self.route.mode,
        )

    def _mirrormaker2(self, folder: Path) -> MirrorMaker2Process:
        config = dict(MIRRORMAKER2_CONFIG)
        for name, end in (("source", self.source), ("target", self.target)):
            if end.login_address:
                config[f"{name}.security.protocol"] = "SASL_PLAINTEXT"
                config[f"{name}.sasl.mechanism"] = MECHANISM
                config[f"{name}.sasl.jaas.config"] = (
                    f'{SCRAM_MODULE} required username="{USER}" password="{PASSWORD}";'
                )
        return MirrorMaker2Process(folder, _address(self.source), _address(self.target), config)


def _address(end: Peer) -> str:
    """Where workers connect."""
    return end.login_address or end.bootstrap


def _security(folder: Path) -> dict[str, Any]:
    """Our worker's, with the password in a file."""
    password = folder / "password"
    password.write_text(PASSWORD)
    return {
        "sasl": {
            "mechanism": MECHANISM,
            "username": {"value": USER},
            "password": {"file": str(password), "from": "the benchmark's file"},
        }
    }


@contextmanager
def ends(peer: Peer, route: Route) -> Iterator[Ends]:
    """Start both brokers of the route: the peer, which is not started, is a source that is a Millstream. Both have
    served a group before, so that no mirror waits until they have created __consumer_offsets."""
    with contextlib.ExitStack() as opened:

        def started(kind: str, name: str) -> Peer:
            broker = Peer(kind, peer.folder / name, route.config, login=kind == KAFKA)
            opened.callback(broker.kill)
            broker.start()
            return broker

        if route.source == MILLSTREAM:
            peer.start()
        source = peer if route.source == MILLSTREAM else started(route.source, "source")
        target = started(route.target, "target")
        for broker in (source, target):
            wire.await_coordinator(broker.bootstrap)
        yield Ends(route, source, target)


class Arrivals:
    """Counts the records of a topic in the target, which the workers bring."""

    def __init__(self, target: Peer, topic: str, partitions: int, workers: Sequence[Mirror]) -> None:
        self._sock = wire.connect(target.bootstrap)
        self._workers = workers
        self.topic = topic
        self.partitions = partitions
        self.count = 0

    def close(self) -> None:
        self._sock.close()

    def until(self, count: int) -> None:
        """Wait until there are this many; TimeoutError after more than ten minutes, RuntimeError with a worker's output
        if it has ended by itself."""
        deadline = time.monotonic() + ARRIVAL_S
        while True:
            self.count = sum(wire.end_offsets(self._sock, self.topic, self.partitions))
            if self.count >= count:
                return
            for one in self._workers:
                if one.process is not None and one.process.poll() is not None:
                    raise RuntimeError(f"{one.name} ended with status {one.process.poll()}:\n{one.said()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.count} of {count} records of {self.topic} are in the target")
            time.sleep(POLL_S)


def commit_positions(source: Peer, topics: Sequence[str], partitions: int) -> None:
    """Set a group's positions to the end of each partition."""
    with wire.connect(source.bootstrap) as sock:
        at = [
            TopicPartition(topic, number, end)
            for topic in topics
            for number, end in enumerate(wire.end_offsets(sock, topic, partitions))
        ]

    def problem() -> str:
        client = perf.admin(source.bootstrap)
        asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, at)])[GROUP]
        refused = [one.error for one in asked.result(wire.TIMEOUT_S).topic_partitions if one.error]
        return f"the source refuses {len(refused)} of {len(at)} positions: {refused[0]}" if refused else ""

    _await_none(problem)


def await_positions(target: Peer, count: int) -> None:
    """Wait until the target has the group's positions in this many partitions."""

    def problem() -> str:
        client = perf.admin(target.bootstrap)
        asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[GROUP]
        found = sum(one.offset > 0 for one in asked.result(wire.TIMEOUT_S).topic_partitions)
        return f"the target has positions of {found} of {count} partitions" if found < count else ""

    _await_none(problem)


def _await_none(problem: Callable[[], str]) -> None:
    """Wait until there is none: a coordinator may still be loading. TimeoutError with the last one after a minute."""
    deadline = time.monotonic() + wire.TIMEOUT_S
    while True:
        try:
            found = problem()
        except KafkaException as error:
            found = str(error)
        if not found:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(found)
        time.sleep(RETRY_S)


def cpu_seconds(mirror: Mirror) -> float:
    return process.cpu_seconds(mirror.pid)


def resident_mb(mirror: Mirror) -> float:
    return process.resident_mb(mirror.pid)
