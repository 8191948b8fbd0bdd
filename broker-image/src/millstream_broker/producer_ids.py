"""Ids for idempotent producers, from blocks that coordination allocates to this broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .coordination.coordination import Coordination


class ProducerIds:
    """Unused ids of a block are lost with the process: there are plenty."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._block = iter(range(0))
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        """Raises CoordinationError."""
        async with self._allocating:
            for producer_id in self._block:
                return producer_id
            block = await self._coordination.allocate_producer_ids()
            self._block = iter(block[1:])
            return block[0]
