"""The operator's memory of a ConsumerGroup between two looks, by the resource's uid; lost when it restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..models import Standstill
from ..models.scaling import History


@dataclass(slots=True)
class GroupMemory:
    standstill: Standstill | None = None
    has_no_mark: bool = False
    """Whether the group is known to have no mark of a reset."""
    scaling: History = field(default_factory=History)
