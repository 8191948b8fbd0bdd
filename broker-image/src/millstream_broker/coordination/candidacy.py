"""A broker's candidacy for /controller: it campaigns while there is no controller, and steps down when it is deposed.

A deposed controller lets others stand first: they may not reach it, although it lives (`Coordination.process_ended`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from . import CoordinationError, tree, writes
from .configs import Configs
from .controller_store import TreeControllerStore
from .controllership import ControllerStore
from .fencing import Elected, Fencing
from .stores import Store

STAND_DOWN_S = 1.0
"""How long a deposed controller does not campaign."""


class Candidacy:
    """That of one broker."""

    def __init__(
        self,
        nodes: Store,
        configs: Configs,
        fencing: Fencing,
        changed: Callable[[], None],
        elected: Callable[[ControllerStore], None],
        deposed: Callable[[], None],
    ) -> None:
        """`changed` is called when `follow` is due, `elected` and `deposed` when this broker is."""
        self._nodes = nodes
        self._configs = configs
        self._fencing = fencing
        self._changed = changed
        self._elected = elected
        self._deposed = deposed
        self.store: TreeControllerStore | None = None
        """While this broker is the controller."""
        self._stands_again = 0.0
        """When it may campaign again, by `time.monotonic`."""

    async def follow(self, broker_id: int, may_campaign: Callable[[], bool]) -> int | None:
        """Do what the tree requires; returns the id of its controller, None while there is none."""
        node = await self._nodes.get(tree.CONTROLLER, lambda path: self._changed())
        if node is None:
            self.depose()
            if may_campaign():
                await self._campaign(broker_id)
            return None
        if node.owner != self._nodes.session_id:
            self.depose()
        elif self.store is None:  # we won, and the response was lost
            epoch = await self._nodes.get(tree.CONTROLLER_EPOCH)
            if epoch is None:
                raise CoordinationError(f"{tree.CONTROLLER_EPOCH} is gone")
            self._take_office(broker_id, tree.controller_epoch_from(epoch.data), epoch.version)
        return tree.controller_from(node.data)

    async def _campaign(self, broker_id: int) -> None:
        if (pause := self._stands_again - time.monotonic()) > 0:
            asyncio.get_running_loop().call_later(pause, self._changed)
            return
        if (won := await writes.stand_for_election(self._nodes, broker_id)) is not None:
            self._take_office(broker_id, *won)
        self._changed()

    def _take_office(self, broker_id: int, epoch: int, epoch_version: int) -> None:
        self._fencing.elected(Elected(epoch, broker_id))
        self.store = TreeControllerStore(self._nodes, self._configs, epoch, epoch_version, self._fenced)
        self._elected(self.store)

    def _fenced(self) -> None:
        """One of our writes was refused: another broker has been elected."""
        self.depose()
        self._changed()

    def depose(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            self._stands_again = time.monotonic() + STAND_DOWN_S
            store.end()
            self._deposed()
