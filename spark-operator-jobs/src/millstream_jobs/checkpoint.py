"""A stream's checkpoint: the offsets of its micro-batches, and the ids of their topics.

    sources/0/0        the start of batch 0
    offsets/7          the end of batch 7, and the start of batch 8
    millstream.json    the ids of the topics: {"flights": "FFoprDM1SJK7NOYIyM9Pww"}

Spark writes the first two before a batch runs, keeps the last 100, and repeats a batch after a kill with the same file.
Each ends with the offsets by topic and partition in JSON: `{"flights": {"0": 56129}}`. So a batch's offsets are known
without its records. The ids are from the first start: offsets of a topic mean nothing in another topic of its name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

import msgspec

from millstream_jobs import positions
from millstream_jobs.failures import JobError
from millstream_jobs.files import Files
from millstream_jobs.run import OffsetRange

VERSION = "v1"
FIRST = "sources/0/0"
TOPICS = "millstream.json"
ANEW = "take another name and another checkpoint"

Offsets = Mapping[tuple[str, int], int]


class CheckpointError(JobError):
    """The checkpoint does not fit the topics, or cannot be read; the message is one line for the user."""


class TopicReplaced(CheckpointError):
    """A topic was deleted and created again: no retry can help."""

    reason = "TopicReplaced"
    final = True


def check_topics(files: Files, ids: Mapping[str, str]) -> None:
    """TopicReplaced if a topic has another id than at the stream's first start; new topics are added."""
    known: dict[str, str] = {}
    try:
        with contextlib.suppress(FileNotFoundError):
            known = msgspec.json.decode(files.read(TOPICS), type=dict[str, str])
        for topic, number in ids.items():
            if positions.as_kafka_writes(known.get(topic, number)) != number:
                raise TopicReplaced(f"topics: {topic} was deleted and created again: {ANEW}")
        if not ids.keys() <= known.keys():
            files.replace(TOPICS, msgspec.json.encode({**known, **ids}))
    except msgspec.DecodeError as error:
        raise CheckpointError(f"checkpoint: {TOPICS} there has no ids of topics: {error}") from None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint: {TOPICS} there cannot be used: {error.strerror or error}"
        ) from None


def ranges(files: Files, number: int) -> tuple[OffsetRange, ...]:
    """The ranges of a micro-batch that have offsets, by topic and partition. Raises CheckpointError."""
    first = _offsets(files, f"offsets/{number - 1}" if number else FIRST)
    until = _offsets(files, f"offsets/{number}")
    for (topic, partition), there in sorted(first.items()):
        end = until.get((topic, partition))
        if end is None:
            raise CheckpointError(
                f"topics: {topic}-{partition} is gone: the topic was deleted, or taken out of topics: {ANEW}"
            )
        if end < there:
            raise CheckpointError(
                f"topics: {topic}-{partition} ends at offset {end}, but was loaded up to {there}: {ANEW}"
            )
    # A partition that was added since starts at its first record.
    parts = (OffsetRange(*part, first.get(part, 0), end) for part, end in sorted(until.items()))
    return tuple(part for part in parts if part.records)


def _offsets(files: Files, path: str) -> Offsets:
    try:
        return _decode(files.read(path))
    except FileNotFoundError:
        problem = "is missing"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except (ValueError, TypeError, AttributeError):
        problem = f"has no offsets in Spark's format {VERSION}"
    raise CheckpointError(f"checkpoint: {path} there {problem}")


def _decode(content: bytes) -> Offsets:
    # Spark puts a byte 0 before the source's offsets.
    lines: Sequence[str] = content.decode().removeprefix("\0").splitlines()
    if not lines or lines[0] != VERSION:
        raise ValueError(lines[:1])
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in json.loads(lines[-1]).items()
        for partition, offset in partitions.items()
    }
