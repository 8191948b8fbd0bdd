"""Kafka's checkpoint files: one version line, one count line, then lines of columns.

    0
    1
    flights 3 1200         topic, partition, offset

``recovery-point-offset-checkpoint``: what is on disk for sure. ``log-start-offset-checkpoint``: first offsets moved by
DeleteRecords (only where the first segment starts before). ``cleaner-offset-checkpoint``: how far a log is compacted.
``replication-offset-checkpoint``: high watermarks.
Written whole and atomically; a file that cannot be read is an error that names it, and the caller decides what to do
without it.
"""

from __future__ import annotations

from .files import write_atomically

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"

TopicPartition = tuple[str, int]


class CheckpointError(ValueError):
    """A checkpoint file does not hold what it should."""


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


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Offsets by topic and partition; empty when there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        return {
            (topic, int(partition)): int(offset)
            for topic, partition, offset in parse_lines(text, path, columns=3)
        }
    except FileNotFoundError:
        return {}
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: {error}") from error


def write_offsets(path: str, offsets: dict[TopicPartition, int], *, sync: bool = True) -> None:
    """Blocking. Without ``sync`` a crash of the machine may lose it."""
    lines = ["0", str(len(offsets))]
    lines += (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    write_atomically(path, ("\n".join(lines) + "\n").encode(), sync=sync)
