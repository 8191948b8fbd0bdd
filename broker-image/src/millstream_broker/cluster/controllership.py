"""This broker's controller, while it is the cluster's controller."""

from __future__ import annotations

from millstream_process import supervision

from ..config.config import BrokerConfig
from ..controller.driver import ControllerDriver
from ..controller.reach import Reach
from ..coordination.controllership import ControllerStore
from ..topic_rules.internal_topics import InternalFactors


class Controllership:
    """All calls are made on the loop: by coordination after an election, by handlers at any time."""

    def __init__(self, broker_id: int, config: BrokerConfig, reach: Reach, factors: InternalFactors) -> None:
        self._broker_id = broker_id
        self._factors = factors
        self._config = config
        self._reach = reach
        self._ending = supervision.Tasks()
        self.controller: ControllerDriver | None = None
        """Set while this broker is the controller."""

    def elected(self, store: ControllerStore) -> None:
        self.controller = ControllerDriver(self._broker_id, self._reach, self._config, store, self._factors)
        self.controller.start()

    def deposed(self) -> None:
        if self.controller is not None:
            driver, self.controller = self.controller, None
            self._ending.add(supervision.run("controller's end", driver.stop()))

    async def ended(self) -> None:
        """Return when every former controller has stopped working."""
        await self._ending.ended()
