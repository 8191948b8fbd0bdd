"""How fast replicas catch up that are being moved (KIP-73): so many bytes a second for all of them on this broker.

It holds for followers that are not in sync and stand in their topic's `follower.replication.throttled.replicas`, which
`kafka-reassign-partitions --throttle` writes; those in sync are never held back. Such a follower asks for what may come
in a second, takes what the leader sends (a whole batch at least), and then waits until the rate allows for it.

The limit is on the side that receives. `leader.replication.throttled.rate`, for the side that sends, is accepted and
changes nothing: each byte that is moved is received by somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class Throttle:
    """One broker's. Times are in seconds, of one clock."""

    __slots__ = ("_paid_until", "_rate")

    def __init__(self, rate: Callable[[], int]) -> None:
        """`rate`: bytes a second, as it is configured at the moment."""
        self._rate = rate
        self._paid_until = 0.0

    def most(self, size: int) -> int:
        """How much to ask for at once: a changed rate counts soon."""
        return min(size, max(self._rate(), 1))

    def took(self, size: int, now: float) -> float:
        """So many bytes came in; when there may be more."""
        self._paid_until = max(self._paid_until, now) + size / max(self._rate(), 1)
        return self._paid_until


def is_listed(replicas: Collection[str], partition: int, broker_id: int) -> bool:
    """Whether `*` or `partition:broker` is in a topic's list of throttled replicas."""
    return "*" in replicas or f"{partition}:{broker_id}" in replicas
