"""Kafka's checkpoint files: one version line, one count line, then lines of columns.

    0
    1
    flights 3 1200         topic, partition, offset

``recovery-point-offset-checkpoint``: the offset up to which a log is certainly on disk.
``log-start-offset-checkpoint``: first offsets moved by DeleteRecords (only if the first segment starts earlier).
``cleaner-offset-checkpoint``: the offset up to which a log is compacted. ``replication-offset-checkpoint``: high
watermarks.

A name does not identify a log: its topic may have been deleted and recreated. So beside each file there is one of ours,
``NAME.by-id``, with the topic id of each log (``-`` if the log's folder has none):

    flights 3 xdtBv0jTQdu-G2qGMFiTmA 1200

:func:`load` reads this file, and an entry applies only to the log with that id. Kafka's file is written for
Kafka's tools. It is read only if ours does not exist, because Kafka or an earlier version wrote the directory.

Each file is written whole and atomically. A file that cannot be read is an error that names it, and the caller decides
what to do without it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.topic_partition import TopicPartition

from .files import write_atomically

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
BY_ID = ".by-id"
_NO_ID = "-"

Identified = Mapping[TopicPartition, tuple[uuid.UUID | None, int]]
"""Topic id and offset of each log."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The entries of a checkpoint file."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[TopicPartition, str] | None = field(default_factory=dict)
    """The topic ids in the file; None if it has none, and every entry applies to the log of its name."""

    def applies(self, key: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Whether the entry of a name belongs to the log with this topic id."""
        return self.topic_ids is None or self.topic_ids.get(key) == _text(topic_id)


class CheckpointError(ValueError):
    """A checkpoint file is not valid."""


def parse_lines(text: str, path: str, *, columns: int) -> list[list[str]]:
    lines = text.splitlines()
    if len(lines) < 2 or lines[0].strip() != "0" or not lines[1].strip().isdigit():
        raise CheckpointError(f"{path}: expected the lines '0' and a number of entries")
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(rows) != int(lines[1]):
        raise CheckpointError(f"{path}: {len(rows)} entries where its second line says {int(lines[1])}")
    for row in rows:
        if len(row) != columns:
            raise CheckpointError(f"{path}: {' '.join(row)!r} does not have {columns} columns")
    return rows


def _text(topic_id: uuid.UUID | None) -> str:
    return _NO_ID if topic_id is None else uuid_text(topic_id)


def load(path: str) -> Checkpoint:
    """Load a checkpoint; empty if there is no file. Blocking. CheckpointError, OSError."""
    rows = _rows(path + BY_ID, columns=4)
    if rows is not None:
        return Checkpoint(
            {key: offset for key, _, offset in rows}, {key: columns[0] for key, columns, _ in rows}
        )
    offsets = read_offsets(path)
    return Checkpoint(offsets, None if offsets else {})


def store(path: str, entries: Identified, *, sync: bool = True) -> None:
    """Blocking. OSError. Without ``sync`` a crash of the machine may lose it.

    Writes our file first: if only Kafka's exists, ours was never written.
    """
    texts: dict[uuid.UUID | None, str] = {}
    lines = []
    for (topic, partition), (topic_id, offset) in entries.items():
        text = texts.get(topic_id) or texts.setdefault(topic_id, _text(topic_id))
        lines.append(f"{topic} {partition} {text} {offset}")
    _write(path + BY_ID, lines, sync=sync)
    write_offsets(path, {key: offset for key, (_, offset) in entries.items()}, sync=False)


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Kafka's file: offsets by topic and partition; empty if there is no file. CheckpointError, OSError."""
    return {key: offset for key, _, offset in _rows(path, columns=3) or ()}


def write_offsets(path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
    """Kafka's file. Blocking. Without ``sync`` a crash of the machine may lose it."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    _write(path, lines, sync=sync)


def _rows(path: str, *, columns: int) -> list[tuple[TopicPartition, list[str], int]] | None:
    """The topic and partition of each line, the columns between, and the offset; None if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return [
            ((topic, int(partition)), between, int(offset))
            for topic, partition, *between, offset in parse_lines(text, path, columns=columns)
        ]
    except FileNotFoundError:
        return None
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _write(path: str, lines: list[str], *, sync: bool) -> None:
    write_atomically(path, "\n".join(["0", str(len(lines)), *lines, ""]).encode(), sync=sync)
