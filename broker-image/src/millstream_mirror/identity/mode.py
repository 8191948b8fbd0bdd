"""Mode Identity, assembled: topics of the target as read-only replicas of the source's."""

from __future__ import annotations

from collections.abc import Sequence

from ..partitions.diverged_partition import DivergedPartition
from ..partitions.mode import Context, MirrorMode
from .flow import CopyFlow
from .promoted import PromotedTopics
from .recovery import IdentityRecovery
from .replicas import ReplicaTopics
from .resync import Resync


class IdentityMode(MirrorMode):
    keeps_epochs = True
    follows_promoted = True
    reports_loops = True

    def __init__(self, context: Context) -> None:
        config, source, clients = context.config, context.source, context.clients
        self._resync: Resync | None = None
        if config.rejoin:
            self._resync = Resync(
                config.rejoin, clients.source, clients.target, context.commit, context.is_leader
            )
        self._promoted = PromotedTopics(context.store)
        self.topics = ReplicaTopics(
            config, source, clients.source, clients.target, self._promoted, self._resync
        )
        self.recovery = recovery = IdentityRecovery(
            clients.source, clients.target, context.store, context.counters, config.on_gap, context.origins
        )
        self.flow = CopyFlow(
            source.name,
            clients.fetching,
            clients.producing,
            recovery,
            context.reachability,
            context.counters,
            context.bytes_per_second,
            source.rack,
        )

    @property
    def promoted(self) -> Sequence[str]:
        return self._promoted.names

    @property
    def diverged(self) -> Sequence[DivergedPartition]:
        return () if self._resync is None else self._resync.diverged

    async def close(self) -> None:
        if self._resync is not None:
            await self._resync.close()
