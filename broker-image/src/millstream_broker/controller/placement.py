"""Places the replicas of new partitions.

Replicas are dealt like cards: to the racks in turn (KIP-36; a broker without a rack counts as a rack of its own), and
within a rack to its brokers in turn. Of a partition's brokers, the one that leads the fewest leads it.
Therefore:

- The replicas of a partition are on different brokers, and no rack gets a second before each has one.
- If racks are of equal size (or there are none), all brokers have as many replicas and lead as many partitions, give
  or take one.

The brokers of a rack are shuffled at the start and again after each round of as many partitions as there are brokers,
so in the end all other brokers follow the partitions of any one. Replicas of other topics do not count, as in Kafka.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping

from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..coordination import BrokerRecord


def place(
    brokers: Mapping[int, BrokerRecord], count: int, factor: int, rng: random.Random | None = None
) -> list[list[int]]:
    """The replicas of `count` partitions, each `factor` broker ids, the preferred leader first.

    Raises ApiError INVALID_REPLICATION_FACTOR.
    """
    if factor <= 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor was set to an invalid non-positive value.",
        )
    if factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered.",
        )
    dealer = _Dealer(brokers, rng or random.Random())
    led: Counter[int] = Counter()
    placed = []
    for index in range(count):
        if index % len(brokers) == 0:
            dealer.shuffle()
        dealt = dealer.deal(factor)
        first = min(range(factor), key=lambda place: led[dealt[place]])
        led[dealt[first]] += 1
        placed.append(dealt[first:] + dealt[:first])
    return placed


class _Dealer:
    """Racks of brokers, and the broker of each that gets the next card."""

    def __init__(self, brokers: Mapping[int, BrokerRecord], rng: random.Random) -> None:
        racks: dict[str | None, list[int]] = defaultdict(list)
        for broker in brokers.values():
            racks[broker.rack].append(broker.broker_id)
        self._racks = list(racks.values())
        self._rng = rng
        rng.shuffle(self._racks)
        self._next_rack = 0
        self._next_in = [0] * len(self._racks)

    def shuffle(self) -> None:
        """Shuffle the racks whose brokers all have the same number of cards."""
        for rack, place in zip(self._racks, self._next_in, strict=True):
            if place == 0:
                self._rng.shuffle(rack)

    def deal(self, cards: int) -> list[int]:
        """Deal one card each to this many different brokers."""
        dealt: list[int] = []
        taken = [0] * len(self._racks)
        while len(dealt) < cards:
            number, self._next_rack = self._next_rack, (self._next_rack + 1) % len(self._racks)
            rack = self._racks[number]
            if taken[number] < len(rack):
                taken[number] += 1
                dealt.append(rack[self._next_in[number]])
                self._next_in[number] = (self._next_in[number] + 1) % len(rack)
        return dealt
