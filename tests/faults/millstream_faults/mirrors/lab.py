"""Two clusters of three brokers, a link, two workers of each mode, and what producers send.

    STEADY      under load all the time; it gets more partitions
    ANEW        deleted and created again
    GAPPED      loses records, some of them before they are mirrored
    COMPACTED   under load all the time, with keys that are overwritten and deleted
    RETAINED    keeps its last records only
    PROMOTED    the beginning of names of topics that are promoted, one after the other (promotion.py)

Groups: GROUP stays in the source; MOVING is the beginning of names of those that move to the target (moving.py).

An Identity mirror copies each topic as it is, an Aggregate mirror to SOURCE.TOPIC. Of each, one worker is at the far
end of the link, the other with the brokers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream_harness.broker import fixed_port
from millstream_harness.cluster import ClusterProcesses, until
from millstream_harness.ledger import Load
from millstream_harness.links import HERE, THERE, Link
from millstream_harness.mirror import MirrorProcess, new_admin, produce
from millstream_harness.zookeeper import ZooKeeperProcess

from .keyed import KeyedLoad

STEADY, ANEW, GAPPED, COMPACTED, RETAINED = "steady", "anew", "gapped", "compacted", "retained"
GROUP = "app"
PARTITIONS = {STEADY: 3, ANEW: 2, GAPPED: 1, COMPACTED: 2, RETAINED: 2}
SETTINGS = {
    COMPACTED: {
        "cleanup.policy": "compact",
        "segment.bytes": "5000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "7200000",  # longer than any mirror is behind
    },
    RETAINED: {"segment.bytes": "2000", "retention.bytes": "6000"},
}
"""Of topics in the source."""
BROKERS = {"log.cleaner.backoff.ms": "500", "log.retention.check.interval.ms": "500"}
MOST_PARTITIONS = 8
BACK_S = 120.0
"""Time within which everything must have recovered."""
LOAD: dict[str, Any] = {"pause_s": 0.05, "config": {"linger.ms": "200"}}
IDENTITY, PROMOTED, MOVING = "identity", "promoted-", "moving-"
MODES: dict[str, dict[str, Any]] = {
    IDENTITY: {"mode": "Identity", "topics": {"include": [*PARTITIONS, f"{PROMOTED}.*"]}},
    "aggregate": {
        "mode": "Aggregate",
        "naming": "Prefixed",
        "onGap": "SkipToEarliest",
        "topics": {"include": [*PARTITIONS]},
    },
}


def copy_of(topic: str, mode: str) -> str:
    return topic if mode == IDENTITY else f"west.{topic}"


class Lab:
    """Enter it within its own namespaces (`isolation`)."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out = out
        self._stack = ExitStack()
        self._ports = {f"{side} {number}": fixed_port() for side in ("west", "east") for number in (1, 2, 3)}
        self.link = Link(self._ports, seed)
        self.zookeeper = ZooKeeperProcess(out / "zookeeper")
        self.loads: list[Load] = []
        self.sent = dict.fromkeys((ANEW, GAPPED, RETAINED), 0)
        """Number of records sent to a topic since it was created."""

    def __enter__(self) -> Lab:
        with ExitStack() as stack:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
            stack.enter_context(self.link)
            stack.enter_context(self.zookeeper)
            self.west, self.east = (stack.enter_context(self._cluster(side)) for side in ("west", "east"))
            for topic, partitions in PARTITIONS.items():
                self.create(topic, partitions)
            self.keyed = KeyedLoad(
                self.west.bootstrap, COMPACTED, partitions=range(PARTITIONS[COMPACTED]), **LOAD
            )
            self.workers = [self._worker(mode, is_far) for mode in MODES for is_far in (False, True)]
            for worker in self.workers:
                stack.callback(worker.kill)
                worker.start()
            self.load(range(PARTITIONS[STEADY]))
            self.keyed.start()
            stack.callback(self.end_loads)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def at_the_end(self, close: Callable[[], object]) -> None:
        """Call it before the clusters end."""
        self._stack.callback(close)

    def _cluster(self, side: str) -> ClusterProcesses:
        cluster = ClusterProcesses(self.out / side, config=BROKERS, zookeeper=self.zookeeper)
        for number, broker in cluster.brokers.items():
            broker.config["listeners"] = f"PLAINTEXT://{HERE}:{self._ports[f'{side} {number}']}"
        return cluster

    def _worker(self, mode: str, is_far: bool) -> MirrorProcess:
        return MirrorProcess(
            self.out / f"{mode}-{'far' if is_far else 'near'}",
            {"west": self.west.bootstrap},
            self.east.bootstrap,
            entering=self.link.entering if is_far else (),
            name=mode,
            groups={"include": [GROUP, f"{MOVING}.*"]},
            http=f"{THERE if is_far else HERE}:0",
            **MODES[mode],
        )

    def restart_workers(self, **changed: Any) -> None:
        """With these fields of their configuration instead of their own."""
        for worker in self.workers:
            worker.kill()
            own, worker.config = worker.config, {**worker.config, **changed}
            worker.start()
            worker.config = own

    def restart(self) -> None:
        """Start the brokers that are down, and all workers anew."""
        for cluster in (self.west, self.east):
            if not any(broker.process for broker in cluster.brokers.values()):
                cluster.start()
            for broker in cluster.brokers.values():
                if broker.process is None:
                    broker.start()
        self.restart_workers()

    def names(self, side: str) -> tuple[str, ...]:
        """The link's names for packets to and from a side's brokers."""
        return tuple(name for name in self._ports if name.startswith(side))

    def admin(self) -> AdminClient:
        """A new client of the source, which knows the leaders. Keep it until the response is there."""
        return new_admin(self.west)

    def create(self, topic: str, partitions: int) -> None:
        def created() -> bool:
            """The name is free once every replica of its predecessor is deleted."""
            if not self.west.partitions(topic):
                client = self.admin()
                spec = NewTopic(topic, partitions, 3, config=SETTINGS.get(topic, {}))
                client.create_topics([spec])[topic].exception(30)
            return len(self.west.partitions(topic)) == partitions

        until(created, f"{topic} is created", 60)
        self.west.await_in_sync(topic, timeout=60)

    def delete(self, cluster: ClusterProcesses, topic: str) -> None:
        client = new_admin(cluster)
        client.delete_topics([topic])[topic].result(30)

    def produce(self, topic: str, count: int) -> None:
        first = self.sent[topic]
        settings = {"linger_ms": 1, "acks": "all", "batch_num_messages": 20}  # a batch fits in each segment
        produce(self.west, topic, range(first, first + count), PARTITIONS[topic], **settings)
        self.sent[topic] += count

    def load(self, partitions: range) -> None:
        """Send records to these partitions of STEADY until the end."""
        load = Load(self.west.bootstrap, STEADY, partitions=partitions, name=f"load{len(self.loads)}", **LOAD)
        self.loads.append(load.start())
        load.until(10 * len(partitions))

    def end_loads(self) -> None:
        for load in (*self.loads, self.keyed):
            load.stop()

    def steady_partitions(self) -> int:
        return len(self.west.partitions(STEADY))

    def add_partition(self) -> None:
        before, client = self.steady_partitions(), self.admin()
        client.create_partitions([NewPartitions(STEADY, before + 1)])[STEADY].result(30)
        self.west.await_in_sync(STEADY, timeout=60)
        self.load(range(before, before + 1))
