"""Whether this broker is the cluster's controller, and the controller that it then is."""

from __future__ import annotations

import asyncio

from millstream_process import supervision

from .config import BrokerConfig
from .controller.driver import ControllerDriver
from .controller.reach import Reach
from .coordination.controllership import ControllerStore


class Controllership:
    """All is called on the loop: by coordination when there has been an election, by handlers at any time."""

    def __init__(self, broker_id: int, config: BrokerConfig, reach: Reach) -> None:
        self._broker_id = broker_id
        self._config = config
        self._reach = reach
        self._ending: set[asyncio.Task[None]] = set()
        self.controller: ControllerDriver | None = None
        """While this broker is the controller."""

    def elected(self, store: ControllerStore) -> None:
        self.controller = ControllerDriver(self._broker_id, self._reach, self._config, store)
        self.controller.start()

    def deposed(self) -> None:
        if self.controller is not None:
            driver, self.controller = self.controller, None
            ending = supervision.run("controller's end", driver.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def ended(self) -> None:
        """Return when no controller of before is at work any more."""
        await asyncio.gather(*self._ending, return_exceptions=True)
