"""Records that only the target had when a partition was resynced with its source, for the status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config.config import SET_ASIDE_SUFFIX


@dataclass(frozen=True, slots=True)
class DivergedPartition:
    """Records of a partition that only the target had, and their copies."""

    topic: str
    partition: int
    offset: int
    """The common offset, at which they began."""
    records: int

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "commonOffset": self.offset,
            "records": self.records,
            "copiedTo": self.topic + SET_ASIDE_SUFFIX,
        }
