"""The logs on the brokers' disks, read by the format's own rules rather than by the broker's code.

A segment is batches after each other, each (version 2 of the format):

    base offset 8, length of what follows 4, leader epoch 4, magic 1, crc32c of the rest 4,
    attributes 2, last offset's delta 4, timestamps 8 8, producer id 8, its epoch 2, its sequence 4, count 4, records
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from crc32c import crc32c

from millstream_broker.log.batch import read_records

from .checker import Batch, Entry
from .history import parse_value

_HEAD = struct.Struct(">qiibI")
_LAST = struct.Struct(">hi")
_AFTER_LENGTH = 12
_CRC_AT = 21


class BadLogError(ValueError):
    """A log on a disk is not what the format says; the text names file and position."""


def batches(folder: Path) -> Iterator[tuple[Batch, bytes]]:
    """The batches of a partition's folder in order, with their bytes. Raises BadLogError."""
    for segment in sorted(folder.glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position < len(data):
            where = f"{segment}: at {position}"
            if len(data) - position < _HEAD.size:
                raise BadLogError(f"{where}: {len(data) - position} bytes are left, which is no batch")
            base, length, epoch, magic, crc = _HEAD.unpack_from(data, position)
            end = position + _AFTER_LENGTH + length
            if end > len(data) or magic != 2:
                raise BadLogError(f"{where}: no batch, or one that is torn (length {length}, magic {magic})")
            raw = data[position:end]
            if crc32c(raw[_CRC_AT:]) != crc:
                raise BadLogError(f"{where}: the CRC is wrong")
            _, delta = _LAST.unpack_from(raw, _CRC_AT)
            yield Batch(base, base + delta, epoch, crc, len(raw)), raw
            position = end


def copies(data: Mapping[int, Path], topic: str) -> dict[int, dict[int, list[Batch]]]:
    """What each broker has of a topic's partitions, by its data folder."""
    return {
        broker: {
            int(folder.name.rpartition("-")[2]): [batch for batch, _ in batches(folder)]
            for folder in sorted(path.glob(f"{topic}-[0-9]*"))
            if folder.name.rpartition("-")[2].isdigit()
        }
        for broker, path in data.items()
    }


def entries(folder: Path) -> list[Entry]:
    """The records of a partition's folder."""
    found: list[Entry] = []
    for _, raw in batches(folder):
        found += [Entry(record.offset, *parse_value(record.value or b"")) for record in read_records(raw)]
    return found
