"""Replicas of mirrors as plain records: topics of a target, and the notes of workers about them; pure.

A topic with the setting ``millstream.mirror.source`` is the read-only replica of one topic of a source cluster. Nobody
can set it later, so an ordinary topic that a worker has once written to as a replica was promoted. Workers note that in
the target, beside their progress: group ``millstream-mirror.MIRROR.SOURCE``, as JSON in the metadata of positions.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass
from typing import Any

from .kafka_records import Partition

KEY = "millstream.mirror.source"
REJOINS = "/rejoin"
"""Ends the setting of an existing topic that a worker makes a replica again: its end may be cut."""
GROUP_PREFIX = "millstream-mirror."


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target. ``source``: of which topic it is a replica, as CLUSTERID/TOPICID, with ``/rejoin`` while
    it becomes one; empty: of none."""

    name: str
    topic_id: str
    partitions: int
    source: str = ""

    @property
    def source_cluster(self) -> str:
        return self.source.partition("/")[0]

    @property
    def source_topic(self) -> str:
        return self.source.partition("/")[2].removesuffix(REJOINS)

    @property
    def rejoins(self) -> bool:
        return self.source.endswith(REJOINS)


@dataclass(frozen=True, slots=True)
class Noted:
    """A worker's note about a partition. ``source_topic``: the id of the source's topic; ``target``: tells apart the
    topics of one name in the target; ``source_end``: the last known end of the source's log, -1 if none is;
    ``seen_ms``: when a worker had first seen it."""

    source_cluster: str
    source_topic: str
    target: int
    source_end: int = -1
    seen_ms: int = 0


def group_of(mirror: str, source: str) -> str:
    return f"{GROUP_PREFIX}{mirror}.{source}"


def mark_of(topic_id: str) -> int:
    """How notes refer to a topic of the target."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")).int >> 65


def read_note(metadata: str) -> Noted | None:
    """None for what no worker has written: every client may commit there."""
    try:
        stored = json.loads(metadata)
        end, seen_ms = stored.get("source", (-1, 0))
        return Noted(
            str(stored["cluster"]),
            _kafka_form(str(stored["topicId"])),
            _number(stored["producer"][0]),
            _number(end),
            _number(seen_ms),
        )
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError):
        return None


def _kafka_form(topic_id: str) -> str:
    return base64.urlsafe_b64encode(uuid.UUID(topic_id).bytes).decode().rstrip("=")


def _number(value: Any) -> int:
    if not isinstance(value, int) or not -1 << 63 <= value < 1 << 63:
        raise ValueError("not a number of 64 bits")
    return value


Notes = dict[Partition, Noted]
