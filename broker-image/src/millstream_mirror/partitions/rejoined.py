"""Records that only the target had when a partition rejoined its source, for the status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config.config import SET_ASIDE


@dataclass(frozen=True, slots=True)
class Rejoined:
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
            "copiedTo": self.topic + SET_ASIDE,
        }
