"""Waiting until the controller has carried out what was written into the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from . import NO_LEADER, ClusterState

REQUEST_S = 15.0
"""Time limit of a write, and again of the controller's update about it."""


class StateWaits:
    """The waits of one broker for states of the cluster."""

    def __init__(self, known: Callable[[], ClusterState]) -> None:
        """`known` is the cluster as this broker knows it."""
        self._known = known
        self._waiting: dict[asyncio.Future[None], Callable[[ClusterState], bool]] = {}

    def resolve(self, state: ClusterState) -> None:
        """The cluster has become this."""
        for future, is_so in list(self._waiting.items()):
            if is_so(state) and not future.done():
                future.set_result(None)

    async def until(self, is_so: Callable[[ClusterState], bool], what: str) -> None:
        """Raises ApiError REQUEST_TIMED_OUT."""
        if is_so(self._known()):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = is_so
        try:
            async with asyncio.timeout(REQUEST_S):
                await future
        except TimeoutError:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{what} is written, but the controller has not carried it out within {REQUEST_S:g} s",
            ) from None
        finally:
            del self._waiting[future]

    async def until_led(self, name: str, indexes: range) -> None:
        """Return when these partitions have leaders, or when none has got one for REQUEST_S.

        A controller announces many partitions in several updates, and may find no live replica to lead some.
        """
        while missing := leaderless(self._known(), name, indexes):
            try:
                await self.until(lambda state: leaderless(state, name, indexes) < missing, name)
            except ApiError:
                return


def leaderless(state: ClusterState, name: str, indexes: range) -> int:
    """The number of these partitions without a leader; deleted ones need none."""
    topic = state.topics.get(name)
    partitions = () if topic is None else topic.partitions[indexes.start : indexes.stop]
    return sum(each.leader == NO_LEADER for each in partitions)
