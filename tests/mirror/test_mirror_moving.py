"""A group that moves between the source and its replica under load neither skips a record nor repeats one that it had
committed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream_harness.daemon import Daemon
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.ledger import Load
from millstream_harness.mirror import MirrorProcess, Peer, create
from millstream_harness.mirror_groups import commit, committed
from millstream_harness.scenario import eventually, unique

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
PARTITIONS = 2
READ = re.compile(r"^read (\d+) (\d+) (\S+)$", re.MULTILINE)
CONSUME = """
import sys
from confluent_kafka import Consumer

bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "error",
    "enable.auto.commit": False, "session.timeout.ms": 10000, "heartbeat.interval.ms": 500, "log_level": 0,
})
consumer.subscribe([topic])
print("ready", flush=True)
while True:
    some = consumer.consume(20, timeout=0.2)
    for message in some:
        assert message.error() is None, message.error()
        print("read", message.partition(), message.offset(), message.value().decode().rstrip("x"))
    sys.stdout.flush()  # a committed record is one that was read
    if some:
        consumer.commit(asynchronous=False)
"""


class Reader(Daemon):
    """A consumer of a group as a process, which reads and commits until it is killed."""

    name = "the consumer"

    def __init__(self, folder: Path, broker: Peer, group: str, topic: str) -> None:
        super().__init__(folder, "consumer.log")
        self._command = [sys.executable, "-c", CONSUME, broker.bootstrap, group, topic]

    def start(self) -> Reader:
        self.launch(self._command)
        self.await_ready(lambda said: "ready" in said)
        return self

    def read(self) -> list[list[tuple[int, str]]]:
        """Offset and value of the records, by partition."""
        found: list[list[tuple[int, str]]] = [[] for _ in range(PARTITIONS)]
        for partition, offset, value in READ.findall(self.said()):
            found[int(partition)].append((int(offset), value))
        return found

    def until(self, count: int) -> None:
        """Wait until it has read so many records of each partition."""

        def counts() -> list[int]:
            assert self.process is not None
            assert self.process.poll() is None, self.said()[-2000:]
            return [len(of_partition) for of_partition in self.read()]

        eventually(counts, lambda now: min(now) >= count, "records read", 90)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[InProcessBroker]:
    config = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"}
    broker = InProcessBroker(tmp_path / "mortal", config).keep_port().start()
    yield broker
    broker.kill()


@pytest.mark.timeout(400)
def test_group_moves_between_clusters_without_loss(
    mortal: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, tmp_path: Path
) -> None:
    topic, group = unique("moving"), unique("app")
    create(mortal, topic, PARTITIONS)
    start_mirror(
        {"west": mortal.bootstrap},
        east.bootstrap,
        name=topic,
        mode="Identity",
        topics={"include": [topic]},
        groups={"include": [group]},
    )
    values: list[dict[int, str]] = [{} for _ in range(PARTITIONS)]
    """Of all records that were read, on either side."""

    def checked(reader: Reader, starts: list[int]) -> None:
        """It began there, and read each record once, the same as others have read at that offset."""
        for partition, records in enumerate(reader.read()):
            offsets = [offset for offset, _ in records]
            assert offsets == list(range(starts[partition], starts[partition] + len(offsets)))
            for offset, value in records:
                assert values[partition].setdefault(offset, value) == value

    def positions(broker: Peer) -> list[int]:
        return committed(broker, group, topic) or [0] * PARTITIONS

    readers: list[Reader] = []

    def read(broker: Peer) -> Reader:
        reader = Reader(tmp_path / f"reader-{len(readers)}", broker, group, topic)
        readers.append(reader)
        return reader.start()

    try:
        with Load(mortal.bootstrap, topic, partitions=range(PARTITIONS), pause_s=0.02) as load:
            load.until(20)
            begin(mortal, group, topic)
            here = [0] * PARTITIONS
            there = [0] * PARTITIONS
            for number in range(3):
                source_reader = read(mortal)
                source_reader.until(30 + 7 * number)
                source_reader.kill()
                before, here = here, settled(mortal, positions)
                checked(source_reader, before)
                wanted = [max(pair) for pair in zip(here, there, strict=True)]
                eventually(
                    lambda: positions(east), lambda now, to=wanted: now == to, "positions in the target", 60
                )
                target_reader = read(east)
                target_reader.until(30)
                target_reader.kill()
                there = settled(east, positions)
                checked(target_reader, wanted)
            # The source is lost with what was committed a moment before.
            last = read(mortal)
            last.until(30)
            last.kill()
            before, here = here, settled(mortal, positions)
            checked(last, before)
            mortal.kill()
            copied = positions(east)
            assert all(one <= max(pair) for one, *pair in zip(copied, here, there, strict=True))
            refuge = read(east)
            eventually(refuge.read, lambda now: min(map(len, now)) > 0, "records read in the target", 60)
            mortal.start()
        refuge.until(60)
        refuge.kill()
        starts = [records[0][0] for records in refuge.read()]
        assert all(one <= max(pair) for one, *pair in zip(starts, here, there, strict=True))
        checked(refuge, starts)
        for of_partition in values:
            assert sorted(of_partition) == list(range(max(of_partition) + 1)), "no record was skipped"
    finally:
        for reader in readers:
            reader.kill()


def begin(broker: Peer, group: str, topic: str) -> None:
    """The group has positions from the start, so that a missing one is an error, and not a new beginning."""
    commit(broker, group, topic, *[0] * PARTITIONS)


def settled(broker: Peer, positions: Callable[[Peer], list[int]]) -> list[int]:
    """The positions when a request that a killed consumer had sent has been served."""
    seen = [positions(broker)]

    def again() -> bool:
        seen.append(positions(broker))
        return len(seen) > 3 and seen[-1] == seen[-2] == seen[-3]

    eventually(again, bool, "positions that do not move")
    return seen[-1]
