"""Results of a reconcile: why a resource is not in its desired state, and the conditions of a status; pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ..models import Resource
from .conditions import Condition, ConditionType, Reason, set_condition

NewCondition = tuple[ConditionType, bool | None, Reason, str]
"""A condition to write: type, status (None: Unknown), reason, message."""
PAUSED_ANNOTATION = "millstream.dev/paused"
PAUSED = (
    ConditionType.PAUSED,
    True,
    Reason.RECONCILE_PAUSED,
    f"paused by annotation {PAUSED_ANNOTATION}; remove it to resume",
)


def is_paused(resource: Resource) -> bool:
    """Whether the resource has the annotation that pauses it."""
    return resource.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a resource is not in its desired state, for its ``Ready`` condition."""

    reason: Reason
    message: str


def shown(words: Sequence[str], most: int) -> str:
    """The first ``most`` of the words, and how many more there are."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def conditions_with(
    resource: Resource,
    *conditions: NewCondition,
    now: datetime,
    without: tuple[ConditionType, ...] = (),
) -> tuple[Condition, ...]:
    """The resource's conditions with these set, those dropped, and ``Paused`` updated; the rest stay."""
    drop = {kind.value for kind in without}
    current: tuple[Condition, ...] = resource.status.conditions or ()  # type: ignore[attr-defined]
    result = tuple(condition for condition in current if condition.type not in drop)
    for kind, status, reason, message in conditions:
        generation = resource.metadata.generation
        result = set_condition(result, kind, status, reason, message, generation=generation, now=now)
    return with_pause(resource, result, now)


def condition_before(resource: Resource, kind: ConditionType) -> NewCondition | None:
    """A condition of the present status; None without one, or if it is Unknown."""
    current: tuple[Condition, ...] = resource.status.conditions or ()  # type: ignore[attr-defined]
    for one in current:
        if one.type == kind.value and one.status != "Unknown":
            with contextlib.suppress(ValueError):  # the reason of another release
                return kind, one.status == "True", Reason(one.reason), one.message
    return None


def with_pause(resource: Resource, conditions: tuple[Condition, ...], now: datetime) -> tuple[Condition, ...]:
    """The conditions, with ``Paused`` only while the resource is paused."""
    if not is_paused(resource):
        return tuple(condition for condition in conditions if condition.type != ConditionType.PAUSED.value)
    kind, status, reason, message = PAUSED
    generation = resource.metadata.generation
    return set_condition(conditions, kind, status, reason, message, generation=generation, now=now)


def replace_ready(
    status: Mapping[str, Any],
    reason: Reason,
    message: str,
    generation: int | None,
    now: datetime,
    unknown: Sequence[ConditionType] = (),
) -> dict[str, Any]:
    """A raw status with ``Ready`` set to False, for resources that cannot be decoded.

    ``unknown``: conditions that may not hold any more; those of them that are there become Unknown.
    """
    current = []
    for condition in status.get("conditions") or ():
        try:
            current.append(msgspec.convert(condition, Condition))
        except msgspec.ValidationError:
            continue
    conditions = set_condition(
        current, ConditionType.READY, False, reason, message, generation=generation, now=now
    )
    there = {one.type for one in conditions}
    for kind in unknown:
        if kind in there:
            conditions = set_condition(
                conditions, kind, None, reason, f"not known: {message}", generation=generation, now=now
            )
    return {
        **status,
        "observedGeneration": generation,
        "conditions": [msgspec.to_builtins(c) for c in conditions],
    }
