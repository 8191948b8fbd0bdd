"""Mode Aggregate, assembled: records of many sources in one topic of the target."""

from __future__ import annotations

from ..kafka.topics import TargetTopics
from ..partitions.mode import Context, MirrorMode
from .flow import NumberingFlow
from .recovery import AggregateRecovery


class AggregateMode(MirrorMode):
    keeps_epochs = False
    follows_promoted = False
    reports_loops = False

    def __init__(self, context: Context) -> None:
        config, source, clients = context.config, context.source, context.clients
        self._topics = TargetTopics(config, source, clients.source, clients.target)
        self._recovery = AggregateRecovery(
            clients.source,
            clients.target,
            clients.comparing,
            context.store,
            context.commit,
            context.counters,
            config.on_gap,
            context.origins,
        )
        self._flow = NumberingFlow(
            source.name,
            clients.fetching,
            clients.producing,
            self._recovery,
            context.reachability,
            context.counters,
            context.bytes_per_second,
            source.rack,
        )

    @property
    def topics(self) -> TargetTopics:
        return self._topics

    @property
    def flow(self) -> NumberingFlow:
        return self._flow

    @property
    def recovery(self) -> AggregateRecovery:
        return self._recovery

    async def close(self) -> None:
        pass
