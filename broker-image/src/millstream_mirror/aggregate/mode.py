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
        self.topics = TargetTopics(config, source, clients.source, clients.target)
        self.recovery = recovery = AggregateRecovery(
            clients.source,
            clients.target,
            clients.comparing,
            context.store,
            context.commit,
            context.counters,
            config.on_gap,
            context.origins,
        )
        self.flow = NumberingFlow(
            source.name,
            clients.fetching,
            clients.producing,
            recovery,
            context.reachability,
            context.counters,
            context.bytes_per_second,
            source.rack,
        )
