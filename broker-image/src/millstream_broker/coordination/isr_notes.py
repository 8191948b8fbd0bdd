"""A leader's notes of changed ISRs, for the controller (/isr_change_notification)."""

from __future__ import annotations

import asyncio

from millstream_kafka.topic_partition import TopicPartition

from . import tree
from .stores import Create, Store, Unavailable

RETRY_S = 0.05


class IsrNotes:
    """Groups the notes of many partitions."""

    def __init__(self, nodes: Store) -> None:
        self._nodes = nodes
        self._changed: set[TopicPartition] = set()
        self._wake = asyncio.Event()

    def leave(self, *partitions: TopicPartition) -> None:
        """Note that their ISRs have changed, so that `run` notifies the controller."""
        self._changed.update(partitions)
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._wake.wait()
            changed, self._changed = self._changed, set()
            self._wake.clear()
            try:
                await self._nodes.connected()
                await self._nodes.multi(
                    [Create(tree.ISR_CHANGE, tree.isr_change_json(changed), sequence=True)]
                )
            except Unavailable:
                self.leave(*changed)
                await asyncio.sleep(RETRY_S)
