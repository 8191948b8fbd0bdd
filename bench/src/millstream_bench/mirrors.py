"""A mirror between two brokers of Millstream: our worker, or MirrorMaker 2.

Both copy all topics whose names begin with "bench-", and the positions of groups with such names. MirrorMaker 2 checks
topics and groups every second, as our worker does, and compresses with the codec of the data in batches of their size;
two tasks share the partitions, one for each core here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream_bench import process, wire
from millstream_bench.peers import MILLSTREAM, MIRRORMAKER2, Peer
from millstream_harness.mirror import MirrorProcess
from millstream_harness.mirrormaker2 import PAIR, MirrorMaker2Process

NAMES = "bench-.*"
POLL_S = 0.005
ARRIVAL_S = 600.0
DEFAULTS = {"group.initial.rebalance.delay.ms": "3000"}
"""Workers join groups, so the brokers' default delays count in the time to the first record."""
MIRRORMAKER2_CONFIG = {
    f"{PAIR}.topics": NAMES,
    f"{PAIR}.groups": NAMES,
    "tasks.max": "2",
    "target.producer.compression.type": "lz4",
    "target.producer.batch.size": "65536",
}


def worker(name: str, folder: Path, source: str, target: str) -> MirrorProcess | MirrorMaker2Process:
    """Our worker, or MirrorMaker 2, not started; the addresses are those of the two brokers."""
    if name == MIRRORMAKER2:
        return MirrorMaker2Process(folder, source, target, MIRRORMAKER2_CONFIG)
    return our_worker(folder, source, target)


def our_worker(folder: Path, source: str, target: str) -> MirrorProcess:
    selected = {"include": [NAMES]}
    return MirrorProcess(folder, {"source": source}, target, topics=selected, groups=selected, name="bench")


@contextmanager
def target_of(source: Peer) -> Iterator[Peer]:
    """A started broker of Millstream beside the source, which is started, too."""
    source.start()
    target = Peer(MILLSTREAM, source.folder / "target", DEFAULTS)
    try:
        target.start()
        yield target
    finally:
        target.kill()


class Arrivals:
    """Counts the records of a topic in the target."""

    def __init__(self, target: Peer, topic: str, partitions: int) -> None:
        self._sock = wire.connect(target.bootstrap)
        self.topic = topic
        self.partitions = partitions
        self.count = 0

    def close(self) -> None:
        self._sock.close()

    def until(self, count: int) -> None:
        """Wait until there are this many; TimeoutError after more than ten minutes."""
        deadline = time.monotonic() + ARRIVAL_S
        while True:
            self.count = sum(wire.end_offsets(self._sock, self.topic, self.partitions))
            if self.count >= count:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.count} of {count} records of {self.topic} are in the target")
            time.sleep(POLL_S)


def cpu_seconds(mirror: MirrorProcess | MirrorMaker2Process) -> float:
    return process.cpu_seconds(mirror.pid)


def resident_mb(mirror: MirrorProcess | MirrorMaker2Process) -> float:
    return process.resident_mb(mirror.pid)
