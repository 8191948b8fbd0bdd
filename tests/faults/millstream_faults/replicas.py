"""The logs on the brokers' disks, read by the format's own rules rather than by the broker's code.

A segment is a sequence of batches, each (version 2 of the format):

    base offset 8, length of what follows 4, leader epoch 4, magic 1, crc32c of the rest 4,
    attributes 2, last offset's delta 4, timestamps 8 8, producer id 8, its epoch 2, its sequence 4, count 4, records
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from crc32c import crc32c

from millstream_kafka.batch import read_records

from .history import TOMBSTONE, parse_value
from .topics import Place
from .violations import ABORTED, COMMITTED, OPEN, Batch, Copy, Entry, Fated

_HEAD = struct.Struct(">qiibI")
_LAST = struct.Struct(">hi")
_AFTER_LENGTH = 12
_CRC_AT = 21
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">q")
_PRODUCER_AT = 43
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MARKER = struct.Struct(">hh")
_COMMIT = 1
STRAY = re.compile(r".+-(?P<partition>\d+)\..+-stray")
LOG = re.compile(r".+-(?P<partition>\d+)")


class BadLogError(ValueError):
    """A log on a disk violates the format; the text names file and position."""


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


def copies(data: Mapping[int, Path], topics: Mapping[str, str]) -> dict[int, dict[Place, Copy]]:
    """Each broker's copies of these topics' partitions; the topics are ids by name.

    Raises BadLogError for a folder of one of these names that belongs to another id.
    """
    return {
        broker: {
            (identity, partition): Copy(_start(folder), [batch for batch, _ in batches(folder)])
            for name, identity in topics.items()
            for partition, folder in folders(path, name, identity)
        }
        for broker, path in data.items()
    }


def folders(data: Path, name: str, identity: str) -> Iterator[tuple[int, Path]]:
    """The partitions of a topic in a broker's log directories.

    Raises BadLogError if a folder is another topic's, or if two directories have the partition.
    """
    seen: dict[str, Path] = {}
    for folder in sorted(data.glob(f"*/{name}-[0-9]*")):
        topic, _, partition = folder.name.rpartition("-")
        if topic != name or not partition.isdigit():
            continue
        if folder.name in seen:
            raise BadLogError(f"{folder} is also in {seen[folder.name].parent.name}")
        seen[folder.name] = folder
        told = (folder / "partition.metadata").read_text()
        if f"topic_id: {identity}\n" not in f"{told}\n":
            raise BadLogError(f"{folder} belongs to {told.split()[-1]}, {name} is {identity}")
        yield int(partition), folder


def held(data: Path) -> tuple[list[list[str | int]], list[list[str | int]]]:
    """The strays and the logs in a broker's log directories, each as topic id and partition, in order."""
    strays: list[list[str | int]] = []
    logs: list[list[str | int]] = []
    for path in data.glob("*/*/partition.metadata"):
        folder = path.parent.name
        try:
            identity = path.read_text().split()[-1]
        except OSError:  # renamed or deleted meanwhile
            continue
        if found := STRAY.fullmatch(folder):
            strays.append([identity, int(found["partition"])])
        elif found := LOG.fullmatch(folder):
            logs.append([identity, int(found["partition"])])
    return sorted(strays), sorted(logs)


def _start(folder: Path) -> int:
    return min((int(segment.stem) for segment in folder.glob("*.log")), default=0)


def entries(folder: Path) -> list[Entry]:
    """The records of a partition's folder. A tombstone names its writer in a header instead of its value."""
    found: list[Entry] = []
    for _, raw in batches(folder):
        for record in read_records(raw):
            value = record.value if record.value is not None else dict(record.headers).get(TOMBSTONE)
            key = (record.key or b"").decode(errors="replace")
            found.append(Entry(record.offset, *parse_value(value or b""), key))
    return found


def fated(folder: Path) -> list[Fated]:
    """The records of a partition's folder, each with the end of its transaction. Raises BadLogError."""
    found: list[Fated] = []
    opened: dict[int, list[int]] = {}
    for _, raw in batches(folder):
        (attributes,) = _ATTRIBUTES.unpack_from(raw, _CRC_AT)
        (producer,) = _PRODUCER.unpack_from(raw, _PRODUCER_AT)
        for record in read_records(raw):
            if attributes & _CONTROL:
                _, kind = _MARKER.unpack_from(record.key or b"")
                for place in opened.pop(producer, ()):
                    found[place] = found[place]._replace(fate=COMMITTED if kind == _COMMIT else ABORTED)
                continue
            if attributes & _TRANSACTIONAL:
                opened.setdefault(producer, []).append(len(found))
            fate = OPEN if attributes & _TRANSACTIONAL else COMMITTED
            found.append(Fated(record.offset, *parse_value(record.value or b""), fate))
    return found
