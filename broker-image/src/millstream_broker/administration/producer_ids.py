"""Ids for idempotent producers, from blocks that begin anywhere in the positive 64-bit numbers.

No stored number says which ids were given out: it could be restored from an older copy, and a new producer would get
the id of one whose records are in the logs. Its records would count as repetitions of those: acknowledged, and not
stored. With random blocks, that is as improbable for the producers of one cluster as for those of two, of which one
mirrors the other byte by byte. A million blocks overlap with a probability of one in ten thousand, and only producers
of the same partition within `producer.id.expiration.ms` matter. Ids below 2^32 are left to Apache Kafka, which counts
from 0.
"""

from __future__ import annotations

import secrets

BLOCK = 1000
FIRST = 1 << 32
END = 1 << 63


class ProducerIds:
    """The ids that one process gives out."""

    def __init__(self) -> None:
        self._block = iter(range(0))

    def next(self) -> int:
        for producer_id in self._block:
            return producer_id
        start = FIRST + secrets.randbelow(END - FIRST - BLOCK)
        self._block = iter(range(start + 1, start + BLOCK))
        return start
