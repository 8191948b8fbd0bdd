"""Which controller requests to accept: those that /controller and /controller_epoch confirm.

A controller epoch is accepted once it has been read from the tree, with the id of the elected broker. A higher epoch
may belong to a new controller that this broker does not know yet, so the tree is read first. The broker epoch must be
that of this broker's current registration. If this broker does not know its newest registration yet, the controller
retries.
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
    """The controller epochs that one broker has confirmed."""

    def __init__(self, nodes: Store) -> None:
        self._nodes = nodes
        self.controller = Elected(0, NO_LEADER)
        """The newest known controller."""

    def elected(self, controller: Elected) -> None:
        self.controller = max(self.controller, controller)

    def check(self, claimed: Elected, broker_epoch: int, own_epoch: int) -> None:
        """Raises ApiError: STALE_BROKER_EPOCH, STALE_CONTROLLER_EPOCH; NOT_CONTROLLER for an unknown one.

        A controller steps down at STALE_CONTROLLER_EPOCH. At NOT_CONTROLLER it retries: the ZooKeeper server
        that this broker reads from may lag.
        """
        if broker_epoch != own_epoch or own_epoch < 0:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
        if claimed.controller_epoch < self.controller.controller_epoch:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)
        if claimed != self.controller:
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"there is no controller {claimed}")

    async def confirm(self, claimed: Elected, broker_epoch: int, own_epoch: int) -> None:
        """`check`, after reading the tree if that may help. Raises ApiError, Unavailable."""
        if broker_epoch == own_epoch and claimed.controller_epoch > self.controller.controller_epoch:
            await self._read()
        self.check(claimed, broker_epoch, own_epoch)

    async def contradicted(self, nodes: Store) -> str:
        """Why the tree is older than the known controller, empty if it is not: an epoch belongs to one broker."""
        known, stored = self.controller, await _stored(nodes)
        if stored.controller_epoch < known.controller_epoch:
            return f"it has controller epoch {stored.controller_epoch}, it had {known.controller_epoch}"
        if (
            stored.controller_epoch == known.controller_epoch
            and NO_LEADER not in (stored.broker_id, known.broker_id)
            and stored != known
        ):
            return (
                f"it has controller epoch {stored.controller_epoch} of broker {stored.broker_id}, it was broker"
                f" {known.broker_id}'s"
            )
        return ""

    async def _read(self) -> None:
        stored = await _stored(self._nodes)
        if stored.broker_id != NO_LEADER:
            self.elected(stored)


async def _stored(nodes: Store) -> Elected:
    """Both nodes, which are written together, as of one time; NO_LEADER while there is no controller."""
    epoch = await nodes.get(tree.CONTROLLER_EPOCH)
    while epoch is not None:
        node = await nodes.get(tree.CONTROLLER)
        again = await nodes.get(tree.CONTROLLER_EPOCH)
        if again is not None and again.version == epoch.version:
            broker_id = NO_LEADER if node is None else tree.controller_from(node.data)
            return Elected(tree.controller_epoch_from(epoch.data), broker_id)
        epoch = again
    return Elected(0, NO_LEADER)
