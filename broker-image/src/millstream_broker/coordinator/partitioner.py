"""The partition of an internal topic that holds a group or a transactional id, as in Kafka."""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in 32 signed bits."""
    result = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result & 0x80000000 else result


def partition_for(key: str, partitions: int) -> int:
    """The partition that holds the key (Kafka's Utils.abs: the least integer becomes 0)."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
