"""Nodes that everybody may use become those of brokers, when a controller with `zookeeper.set.acl` is elected.

They may be older than the setting, or be restored from a time before it.
"""

from __future__ import annotations

import asyncio
import logging

from . import CoordinationError
from .stores import Store, StoreError, Unavailable

RETRY_S = 1.0
REPEAT_S = 30.0
"""Pause after an error that needs an administrator."""

log = logging.getLogger(__name__)


class Restriction:
    """That of one broker."""

    def __init__(self, nodes: Store) -> None:
        self._nodes = nodes
        self._needed = asyncio.Event()

    def need(self) -> None:
        """This broker has been elected."""
        self._needed.set()

    async def run(self) -> None:
        while True:
            await self._needed.wait()
            self._needed.clear()
            try:
                if restricted := await self._nodes.restrict():
                    log.info("%s: %d nodes are for brokers only now", self._nodes, restricted)
                continue
            except Unavailable:
                pause = RETRY_S
            except (CoordinationError, StoreError) as error:
                log.error("nodes that everybody may use: %s", error)
                pause = REPEAT_S
            self._needed.set()
            await asyncio.sleep(pause)
