"""Which requests of a controller are to be believed: those that /controller and /controller_epoch bear out.

A controller epoch is believed after it was read, with the id of the broker that was elected to it. An epoch above that
may be a new controller's, of which this broker has not heard yet: it is read first. A broker epoch must be that of this
broker's present registration. This broker may not know of its newest registration yet: then the controller tries again.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import NO_LEADER, tree
from .stores import Store


class Elected(NamedTuple):
    controller_epoch: int
    broker_id: int


class Fencing:
    """What one broker believes."""

    def __init__(self, nodes: Store) -> None:
        self._nodes = nodes
        self.controller = Elected(0, NO_LEADER)
        """The newest that is known."""

    def elected(self, controller: Elected) -> None:
        self.controller = max(self.controller, controller)

    def check(self, claimed: Elected, broker_epoch: int, own_epoch: int) -> None:
        """Raises ApiError: STALE_BROKER_EPOCH, STALE_CONTROLLER_EPOCH; NOT_CONTROLLER for one that is not known.

        A controller steps down at STALE_CONTROLLER_EPOCH. At NOT_CONTROLLER it tries again: the server of
        ZooKeeper that this broker reads from may lag.
        """
        if broker_epoch != own_epoch or own_epoch < 0:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        if claimed.controller_epoch < self.controller.controller_epoch:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)
        if claimed != self.controller:
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"there is no controller {claimed}")

    async def confirm(self, claimed: Elected, broker_epoch: int, own_epoch: int) -> None:
        """`check`, after what is stored was read where that may help. Raises ApiError, and Unavailable."""
        if broker_epoch == own_epoch and claimed.controller_epoch > self.controller.controller_epoch:
            await self._read()
        self.check(claimed, broker_epoch, own_epoch)

    async def _read(self) -> None:
        """Both nodes are written as one, and are read as of one time."""
        epoch = await self._nodes.get(tree.CONTROLLER_EPOCH)
        while epoch is not None:
            node = await self._nodes.get(tree.CONTROLLER)
            again = await self._nodes.get(tree.CONTROLLER_EPOCH)
            if again is not None and again.version == epoch.version:
                if node is not None:
                    self.elected(
                        Elected(tree.controller_epoch_from(epoch.data), tree.controller_from(node.data))
                    )
                return
            epoch = again
