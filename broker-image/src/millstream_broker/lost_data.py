"""What a broker does when it has lost data, or cannot write any: it says so, and the controller elects others."""

from __future__ import annotations

import asyncio
import logging

from .coordination.coordination import Coordination

GIVE_UP_PAUSE_S = 5.0
"""Until the controller has moved them, partitions go on failing: that is no reason to ask again."""

log = logging.getLogger(__name__)


class LostData:
    """All is called on the loop."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._gave_up_at = float("-inf")

    def directory_failed(self) -> None:
        """What was in there cannot be led any more."""
        if self._coordination.broker_epoch >= 0:
            self._coordination.lost_data()

    def cannot_write(self) -> None:
        """A disk takes no records, being full perhaps: others had better lead, and this broker catch up when it can."""
        now = asyncio.get_running_loop().time()
        if now > self._gave_up_at + GIVE_UP_PAUSE_S:
            self._gave_up_at = now
            log.warning("cannot write records: moving leadership to other brokers")
            self.directory_failed()
