"""Reports lost data or an unwritable disk to the controller, which elects other leaders."""

from __future__ import annotations

import asyncio
import logging

from ..coordination.coordination import Coordination

GIVE_UP_PAUSE_S = 5.0
"""Pause between requests: until the controller has moved them, partitions keep failing."""

log = logging.getLogger(__name__)


class LostData:
    """All is called on the loop."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._gave_up_at = float("-inf")

    def directory_failed(self) -> None:
        """This broker can no longer lead the partitions in a failed directory."""
        if self._coordination.broker_epoch >= 0:
            self._coordination.lost_data()

    def cannot_write(self) -> None:
        """Disk not writable, perhaps full: move leadership away, and catch up later."""
        now = asyncio.get_running_loop().time()
        if now > self._gave_up_at + GIVE_UP_PAUSE_S:
            self._gave_up_at = now
            log.warning("cannot write records: moving leadership to other brokers")
            self.directory_failed()
