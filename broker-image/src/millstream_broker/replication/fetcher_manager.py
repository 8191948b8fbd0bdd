"""The fetchers of a broker: one for each leader, while it follows any of its partitions."""

from __future__ import annotations

import asyncio

from millstream_process import supervision

from ..config.config import BrokerConfig
from ..coordination import NO_LEADER
from ..security.mechanisms.inter_broker import InterBroker
from .fetcher import Fetcher
from .follower import Follower
from .replicas import Replicas
from .throttle import Throttle


class ReplicaFetcherManager:
    """All calls are made on the loop."""

    def __init__(self, replicas: Replicas, config: BrokerConfig, peers: InterBroker) -> None:
        self._replicas = replicas
        self._config = config
        self._peers = peers
        self._throttle = Throttle(lambda: config.integer("follower.replication.throttled.rate"))
        self._by_leader: dict[int, Fetcher] = {}
        self._closing = supervision.Tasks()

    def add(self, follower: Follower) -> None:
        """Fetch for the follower from the leader in its record, if any."""
        leader = follower.record.leader
        if leader == NO_LEADER:
            return
        fetcher = self._by_leader.get(leader)
        if fetcher is None:
            fetcher = self._by_leader[leader] = Fetcher(
                self._peers,
                leader,
                self._config,
                lambda: self._replicas.latest_image.brokers.get(leader),
                self._throttle,
            )
            fetcher.start()
        fetcher.add(follower)

    def remove(self, follower: Follower) -> None:
        if (fetcher := self._by_leader.get(follower.record.leader)) is not None:
            fetcher.remove(follower.key)

    def wake(self) -> None:
        """See `Fetcher.wake`."""
        for fetcher in self._by_leader.values():
            fetcher.wake()

    def end_idle(self) -> None:
        """End fetchers without partitions."""
        for leader in [leader for leader, fetcher in self._by_leader.items() if not len(fetcher)]:
            self._closing.add(supervision.run("fetcher's end", self._by_leader.pop(leader).close()))

    async def close(self) -> None:
        await asyncio.gather(*(fetcher.close() for fetcher in self._by_leader.values()), *self._closing)
