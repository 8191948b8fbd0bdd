"""Limits the rate at which reassigned replicas catch up (KIP-73), in bytes a second for all of them on this broker.

It applies to followers that are not in sync and are listed in their topic's `follower.replication.throttled.replicas`,
which `kafka-reassign-partitions --throttle` writes; followers in sync are never throttled. Such a follower requests
at most a second's bytes, takes what the leader sends (at least a whole batch), and then waits as long as the rate
requires.

Only the receiving side is limited. `leader.replication.throttled.rate`, for the sending side, is accepted and has no
effect: limiting the receivers limits all traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class Throttle:
    """One broker's. Times are in seconds, of one clock."""

    __slots__ = ("_paid_until", "_rate")

    def __init__(self, rate: Callable[[], int]) -> None:
        """`rate` returns the configured bytes a second."""
        self._rate = rate
        self._paid_until = 0.0

    def most(self, size: int) -> int:
        """Number of bytes to fetch at once, so that a changed rate takes effect soon."""
        return min(size, max(self._rate(), 1))

    def took(self, size: int, now: float) -> float:
        """Account for `size` received bytes; returns the time of the next fetch."""
        self._paid_until = max(self._paid_until, now) + size / max(self._rate(), 1)
        return self._paid_until


def is_listed(replicas: Collection[str], partition: int, broker_id: int) -> bool:
    """Whether `*` or `partition:broker` is in a topic's list of throttled replicas."""
    return "*" in replicas or f"{partition}:{broker_id}" in replicas
