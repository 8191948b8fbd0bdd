"""Choose a record's partition: Kafka's own rules, and a user's.

`Murmur2` and `Random` run in librdkafka. Any callable of `Partitioner`'s shape runs in Python, for each record.
"""

from __future__ import annotations

import itertools
import random
from typing import Protocol, runtime_checkable


@runtime_checkable
class Partitioner(Protocol):
    """A callable that chooses a partition: a number from 0 to ``partitions - 1``.

    ``key`` and ``value`` are serialized. Another return value makes `Producer.send` raise BadPartition, and the record
    is not sent.
    """

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int, /) -> int: ...


class Murmur2:
    """By the key's murmur2 hash, as in Kafka's Java clients; without a key, batch by batch at random. The default."""

    librdkafka = "murmur2_random"

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int, /) -> int:
        return random.randrange(partitions) if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


class Random:
    """At random, whatever the key."""

    librdkafka = "random"

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int, /) -> int:
        return random.randrange(partitions)


class RoundRobin:
    """One partition after the other, whatever the key; each topic has its own order."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int, /) -> int:
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns.setdefault(topic, itertools.count())
        return next(turn) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, unsigned. Source: org.apache.kafka.common.utils.Utils.murmur2."""
    mask, prime = 0xFFFFFFFF, 0x5BD1E995
    found = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * prime & mask
        word = (word ^ word >> 24) * prime & mask
        found = found * prime & mask ^ word
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * prime & mask
    found = (found ^ found >> 13) * prime & mask
    return found ^ found >> 15
