"""A cluster of real broker processes over a real ZooKeeper; ``in_process_cluster`` has one without processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Self, TypeVar

from millstream_harness.broker import AnyBroker, BrokerProcess
from millstream_harness.zookeeper import ZooKeeperEnsemble, ZooKeeperProcess
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.metadata import MetadataResponse, MetadataResponsePartition

B = TypeVar("B", bound=AnyBroker)

SESSION_MS = 2000
DEADLINE_S = 60.0
"""Longer than a busy machine needs: a limit for what hangs, no promise."""
LAST_LINES = 15
STABLE = {"zookeeper.session.timeout.ms": "120000", "replica.lag.time.max.ms": "120000"}
"""For tests that silence no broker: on a busy machine none counts as dead or behind. An ended process still does."""


def defaults(size: int) -> dict[str, str]:
    """Configuration of the brokers of a cluster: faults are noticed in two seconds."""
    return {
        "default.replication.factor": str(min(size, 3)),
        "min.insync.replicas": "2" if size > 1 else "1",
        "replica.lag.time.max.ms": "2000",
        "offsets.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
    }


class AnyCluster(Generic[B]):
    """What a test sees of a cluster, however its brokers run; ``brokers[3]`` is broker 3."""

    brokers: dict[int, B]

    def start(self) -> Self:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(
            one.config["listeners"].split("://")[1].split(",")[0] for one in self.brokers.values()
        )

    def metadata(self, *topics: str, of: B | None = None) -> MetadataResponse:
        """Metadata from that broker, or from any that responds."""
        bootstrap = self.bootstrap if of is None else of.bootstrap

        async def ask() -> MetadataResponse:
            async with ClusterClient(bootstrap, "test", timeout=20.0, connect_timeout=1.0) as client:
                return await client.metadata(topics or None)

        return asyncio.run(ask())

    def partitions(self, topic: str, of: B | None = None) -> list[MetadataResponsePartition]:
        """Partitions in order; none if there is no such topic."""
        found = [one.partitions for one in self.metadata(topic, of=of).topics if one.name == topic]
        return sorted(found[0], key=lambda one: one.partition_index) if found else []

    def leader(self, topic: str, partition: int = 0) -> B:
        """Wait for a leader of the partition; returns its broker."""

        found: list[int] = []

        def led() -> bool:
            found[:] = [one.leader_id for one in self.partitions(topic)]
            return len(found) > partition and found[partition] >= 0

        until(led, f"{topic}-{partition} has a leader")
        return self.brokers[found[partition]]

    def controller(self) -> int:
        """Wait for a live controller; returns its broker id."""
        found: list[int] = []

        def known() -> bool:
            found[:] = [self.metadata().controller_id]
            return found[0] >= 0

        until(known, "there is a controller")
        return found[0]

    def await_in_sync(self, topic: str, replicas: int = 3, timeout: float = DEADLINE_S) -> None:
        """Wait until every broker reports a leader and this many in-sync replicas for each partition of the topic."""

        def in_sync() -> bool:
            seen = [self.partitions(topic, one) for one in self.brokers.values() if one.is_running]
            return bool(seen[0]) and all(
                partitions == seen[0]
                and all(one.leader_id >= 0 and len(one.isr_nodes) == replicas for one in partitions)
                for partitions in seen
            )

        until(in_sync, f"{replicas} replicas of {topic} are in sync", timeout)


class ClusterProcesses(AnyCluster[BrokerProcess]):
    """Brokers 1 to ``size``, each on its own port across restarts; ``brokers[3]`` is broker 3.

    ZooKeeper starts with them, unless the caller passes one and manages it.
    """

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        zookeeper: ZooKeeperProcess | ZooKeeperEnsemble | None = None,
    ) -> None:
        self.zookeeper = zookeeper or ZooKeeperProcess(folder / "zookeeper")
        self._owns_zookeeper = zookeeper is None
        self.connect = (
            zookeeper.own_tree() if isinstance(zookeeper, ZooKeeperProcess) else self.zookeeper.connect
        )
        self.folder = folder
        self.config = {
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            **defaults(size),
            **(config or {}),
        }
        self.brokers = {number: self.broker(number) for number in range(1, size + 1)}

    def broker(self, number: int, **config: str) -> BrokerProcess:
        """Add a broker, not started."""
        settings = {"broker.id": str(number), **self.config, **config}
        return BrokerProcess(self.folder / f"broker-{number}", settings).keep_port()

    def start(self) -> Self:
        """Start all at once."""
        if self._owns_zookeeper:
            self.zookeeper.start()
        begun = {number: one.printed() for number, one in self.brokers.items()}
        for one in self.brokers.values():
            one.launch(one.command)
        for number, one in self.brokers.items():
            one.await_ready(one.is_ready, begun[number])
        return self

    def kill(self) -> None:
        for one in self.brokers.values():
            one.kill()
        if self._owns_zookeeper:
            self.zookeeper.kill()

    def await_in_sync(self, topic: str, replicas: int = 3, timeout: float = DEADLINE_S) -> None:
        """As of any cluster; the AssertionError ends with the last lines of each broker."""
        try:
            super().await_in_sync(topic, replicas, timeout)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *map(self._last_lines, self.brokers)])) from None

    def _last_lines(self, number: int) -> str:
        broker = self.brokers[number]
        status = None if broker.process is None else broker.process.poll()
        state = (
            "was stopped"
            if broker.process is None
            else "runs"
            if status is None
            else f"ended with status {status}"
        )
        return "\n".join([f"broker {number} {state}:", *broker.said().splitlines()[-LAST_LINES:]])


def until(condition: Callable[[], object], what: str, timeout: float = DEADLINE_S) -> None:
    """Poll until the condition holds; AssertionError after the deadline. Errors of brokers are ignored meanwhile."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(BrokerError, ApiError):
            if condition():
                return
        assert time.monotonic() < deadline, f"it never came to be that {what}"
        time.sleep(0.02)
