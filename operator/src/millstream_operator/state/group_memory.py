"""The operator's memory of a ConsumerGroup between two reconciles, by the resource's uid; lost when it restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..models import Standstill
from ..models.scaling import History


@dataclass(slots=True)
class GroupMemory:
    standstill: Standstill | None = None
    scaling: History = field(default_factory=History)
