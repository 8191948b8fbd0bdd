"""Replicas of mirrors as plain records: topics of a target, and the notes of workers about them; pure.

A topic with the setting ``millstream.mirror.source`` is the read-only replica of one topic of a source cluster. An
existing topic gets it only by rejoining, so an ordinary topic that a worker has once written to as a replica was
promoted. Workers note their writes in the target, beside their progress: group ``millstream-mirror.MIRROR.SOURCE``, as
JSON in the metadata of positions.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from millstream_kafka.kafka_uuid import uuid_from, uuid_text
from millstream_kafka.mirror_source import KEY, PROMOTED, REJOIN, with_request

from .records import ConfigChange, Partition

__all__ = ["KEY", "PROMOTED", "Noted", "Notes", "TargetTopic", "group_of", "mark_of", "read_note", "time_of"]

GROUP_PREFIX = "millstream-mirror."
LAST_MS = 253_402_300_799_000
"""The end of the year 9999."""


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target. ``source`` is the topic of which it is a replica, as CLUSTERID/TOPICID.

    With ``/rejoin`` the topic is to become a replica; an ordinary topic has an empty one. ``promoted`` are the last
    requests under which it was promoted, the latest first; None if the brokers do not know this setting.
    """

    name: str
    topic_id: str
    partitions: int
    source: str = ""
    promoted: tuple[str, ...] | None = ()

    @property
    def source_cluster(self) -> str:
        return self.source.partition("/")[0]

    @property
    def source_topic(self) -> str:
        return self.source.partition("/")[2].removesuffix(REJOIN)

    @property
    def rejoins(self) -> bool:
        return self.source.endswith(REJOIN)

    def was_promoted_by(self, request_id: str) -> bool:
        return request_id in (self.promoted or ())

    def promotion(self, request_id: str) -> ConfigChange:
        """The change of its settings that promotes it, in one atomic write."""
        if self.promoted is None:
            return ConfigChange({}, (KEY,))
        return ConfigChange({PROMOTED: with_request(",".join(self.promoted), request_id)}, (KEY,))


@dataclass(frozen=True, slots=True)
class Noted:
    """A worker's note about a partition.

    ``source_topic`` is the id of the source's topic; ``target`` distinguishes topics of one name in the target;
    ``source_end`` is the last known end of the source's log, -1 if unknown; ``seen_ms`` is when a worker first saw it.
    """

    source_cluster: str
    source_topic: str
    target: int
    source_end: int = -1
    seen_ms: int = 0


def group_of(mirror: str, source: str) -> str:
    return f"{GROUP_PREFIX}{mirror}.{source}"


def mark_of(topic_id: str) -> int:
    """The value of ``target`` in notes about a topic of the target."""
    return uuid_from(topic_id).int >> 65


def time_of(ms: int) -> datetime:
    """The time of a note or a report, both of which anybody may have written: at most the last that there is."""
    return datetime.fromtimestamp(min(max(0, ms), LAST_MS) / 1000, UTC)


def read_note(metadata: str) -> Noted | None:
    """None for metadata that no worker writes: every client may commit there."""
    try:
        stored = json.loads(metadata)
        end, seen_ms = stored.get("source", (-1, 0))
        return Noted(
            str(stored["cluster"]),
            uuid_text(uuid.UUID(str(stored["topicId"]))),
            _number(stored["producer"][0]),
            _number(end),
            _number(seen_ms),
        )
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError):
        return None


def _number(value: Any) -> int:
    if not isinstance(value, int) or not -1 << 63 <= value < 1 << 63:
        raise ValueError("not a number of 64 bits")
    return value


Notes = dict[Partition, Noted]
