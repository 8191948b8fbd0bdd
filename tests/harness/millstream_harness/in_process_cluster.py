"""Clusters of whole brokers in this process, which share a tree in memory in place of ZooKeeper's (``shared_tree``).

`LoopCluster` is for coroutines on the same loop, and most useful on one whose clock jumps (``jumping_clock``).
`InProcessCluster` has the interface of ``cluster.ClusterProcesses``, for any client, at real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from millstream_broker.coordination import ClusterState, PartitionRecord

from .background_loop import background_loop
from .broker import fixed_port
from .cluster import SESSION_MS, AnyCluster, defaults
from .in_process_broker import InProcessBroker
from .loop_broker import LoopBroker
from .members import until
from .shared_tree import SharedStore, SharedTree


def session_s(config: Mapping[str, str]) -> float:
    return int(config.get("zookeeper.session.timeout.ms", SESSION_MS)) / 1000


class LoopCluster:
    """Brokers 1 to ``size`` on the running loop, each on its own port across restarts."""

    def __init__(self, folder: Path, size: int = 3, config: Mapping[str, str] | None = None) -> None:
        settings = {**defaults(size), **(config or {})}
        self.tree = SharedTree(session_s(settings))
        self.brokers: dict[int, LoopBroker] = {}
        for number in range(1, size + 1):
            port = {"broker.id": str(number), "listeners": f"PLAINTEXT://127.0.0.1:{fixed_port()}"}
            self.brokers[number] = LoopBroker(folder / f"broker-{number}", {**port, **settings}, self.tree)

    @property
    def bootstrap(self) -> str:
        return ",".join(one.config["listeners"].split("://")[1] for one in self.brokers.values())

    async def start(self) -> Self:
        """Start all that do not run, at once."""
        async with asyncio.TaskGroup() as group:
            for one in self.brokers.values():
                if not one.is_running:
                    group.create_task(one.start())
        return self

    async def discard(self) -> None:
        for one in self.brokers.values():
            await one.kill(keeps_data=False)

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.discard()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.discard()

    def store(self, broker: int) -> SharedStore:
        """The broker's way to the tree, to break it."""
        found = self.brokers[broker].store
        assert found is not None
        return found

    # The brokers' view

    def state(self, broker: int) -> ClusterState:
        """The cluster as this broker has applied it."""
        return self.brokers[broker].broker.replicas.metadata.state

    def partition(self, topic: str, index: int = 0, *, of: int) -> PartitionRecord | None:
        """None if that broker knows no such partition."""
        known = self.state(of).topics.get(topic)
        return known.partitions[index] if known is not None and index < len(known.partitions) else None

    async def agreed(
        self, topic: str, index: int = 0, accepted: Callable[[PartitionRecord], bool] = lambda record: True
    ) -> PartitionRecord:
        """Wait until all running brokers know the same state of the partition, which is led and ``accepted``."""
        found: list[PartitionRecord | None] = []

        def is_agreed() -> bool:
            found[:] = [
                self.partition(topic, index, of=number)
                for number, one in self.brokers.items()
                if one.is_running
            ]
            first = found[0]
            return (
                first is not None
                and first.leader >= 0
                and accepted(first)
                and all(
                    one is not None
                    and (one.leader, one.leader_epoch, one.isr)
                    == (first.leader, first.leader_epoch, first.isr)
                    for one in found
                )
            )

        await until(is_agreed, 60.0)
        assert found[0] is not None
        return found[0]


class InProcessCluster(AnyCluster[InProcessBroker]):
    """Brokers 1 to ``size`` on this process's background loop, each on its own port across restarts."""

    def __init__(self, folder: Path, size: int = 3, config: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.config = {**defaults(size), **(config or {})}
        self.tree = background_loop().call(SharedTree, session_s(self.config))
        self.brokers = {number: self.broker(number) for number in range(1, size + 1)}

    def broker(self, number: int, **config: str) -> InProcessBroker:
        """Add a broker, not started."""
        settings = {"broker.id": str(number), **self.config, **config}
        return InProcessBroker(self.folder / f"broker-{number}", settings, self.tree).keep_port()

    def start(self) -> Self:
        """Start all that do not run, at once."""

        async def start() -> None:
            async with asyncio.TaskGroup() as group:
                for one in self.brokers.values():
                    if not one.is_running:
                        one.on_loop.config = one.config
                        group.create_task(one.on_loop.start())

        background_loop().run(start())
        for one in self.brokers.values():
            one.started()
        return self

    def kill(self) -> None:
        for one in self.brokers.values():
            one.kill()

    def __exit__(self, *_: object) -> None:
        """Away with all, and their data is of no use any more."""
        for one in self.brokers.values():
            one.discard()

    # Faults of coordination

    def cut(self, broker: int) -> None:
        """The broker loses its connection to the tree, until ``heal``; its session ends after its timeout."""
        background_loop().call(self._store(broker).cut)

    def heal(self, broker: int) -> None:
        background_loop().call(self._store(broker).heal)

    def expire(self, broker: int) -> None:
        """The broker's session ends now; the broker learns it when it has connected again, at once unless it is cut."""
        background_loop().call(self._store(broker).expire)

    def _store(self, broker: int) -> SharedStore:
        found = self.brokers[broker].on_loop.store
        assert found is not None
        return found
