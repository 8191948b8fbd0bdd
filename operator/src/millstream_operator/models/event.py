"""A Kubernetes Event about a resource."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class Event(NamedTuple):
    type: EventType
    reason: str
    message: str
