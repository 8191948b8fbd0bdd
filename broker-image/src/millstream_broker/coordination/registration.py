"""A broker's registration in the tree, and the end of those whose processes have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from . import BrokerRecord, CoordinationError, writes
from .stores import NotAllowed, Store, Unavailable


class OwnRegistration:
    """That of one broker."""

    def __init__(self, nodes: Store, changed: Callable[[], None]) -> None:
        """`changed` is called when `renew` is due."""
        self._nodes = nodes
        self._changed = changed
        self.broker: BrokerRecord | None = None
        """This broker under its newest epoch, once it has registered."""
        self._is_outdated = False
        """Whether the existing registration must be replaced."""
        self.ended: list[BrokerRecord] = []
        """Other brokers whose registrations are about to end."""

    async def register_patiently(self, broker: BrokerRecord, takes_over: bool) -> BrokerRecord:
        """Register at start: the holder of the id may be about to lose its session. Raises CoordinationError."""
        end = time.monotonic() + self._nodes.timeout * 1.5
        while True:
            try:
                self.broker = await self._register(broker, takes_over)
                return self.broker
            except CoordinationError as error:
                if isinstance(error, Unavailable | NotAllowed) or time.monotonic() > end:
                    raise
            await asyncio.sleep(0.2)

    async def _register(self, broker: BrokerRecord, takes_over: bool = True) -> BrokerRecord:
        anew, self._is_outdated = self._is_outdated, False
        try:
            return await writes.register(
                self._nodes, broker, lambda path: self._changed(), takes_over=takes_over, anew=anew
            )
        except BaseException:
            self._is_outdated |= anew
            raise

    def lost_data(self, broker: BrokerRecord) -> None:
        """Register again, as unclean, so that the controller elects others."""
        self.broker = replace(broker, unclean=True)
        self._is_outdated = True
        self._changed()

    async def renew(self, broker: BrokerRecord) -> BrokerRecord:
        """The broker under its present epoch."""
        registered = await self._register(broker)
        if self._is_outdated:  # data was lost meanwhile; the registration is about to be repeated
            registered = replace(registered, unclean=True)
        self.broker = registered
        return registered

    async def end_others(self) -> None:
        while self.ended:
            await writes.end_registration(self._nodes, self.ended[0])
            del self.ended[0]
