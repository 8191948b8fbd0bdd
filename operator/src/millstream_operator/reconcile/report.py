"""How a reconcile says what it found: problems, and conditions set on a status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ..conditions import Condition, ConditionType, Reason, set_condition
from ..kube import KubeError
from ..models import Resource
from ..services import Services
from ..status import write_status

logger = logging.getLogger(__name__)

PAUSED_ANNOTATION = "millstream.dev/paused"
PAUSED = (
    ConditionType.PAUSED,
    True,
    Reason.RECONCILE_PAUSED,
    f"annotation {PAUSED_ANNOTATION}: nothing is changed until it is gone",
)


def is_paused(resource: Resource) -> bool:
    """Whether its user wants nothing changed for now."""
    return resource.metadata.annotations.get(PAUSED_ANNOTATION) == "true"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a resource is not as it should be, for its ``Ready`` condition."""

    reason: Reason
    message: str


def conditions_with(
    resource: Resource,
    *conditions: tuple[ConditionType, bool | None, Reason, str],
    now: datetime,
    without: tuple[ConditionType, ...] = (),
) -> tuple[Condition, ...]:
    """The resource's conditions with these set and those dropped; the rest stay."""
    drop = {kind.value for kind in without}
    current: tuple[Condition, ...] = resource.status.conditions or ()  # type: ignore[attr-defined]
    result = tuple(condition for condition in current if condition.type not in drop)
    for kind, status, reason, message in conditions:
        generation = resource.metadata.generation
        result = set_condition(result, kind, status, reason, message, generation=generation, now=now)
    return result


def report_problem(services: Services, resource: Resource, problem: Problem, seconds: float) -> float:
    """Say what is wrong, and when to look again; the rest of the status stays as it was last seen."""
    ready = (ConditionType.READY, False, problem.reason, problem.message)
    status = msgspec.structs.replace(
        resource.status,  # type: ignore[attr-defined]  # every kind has one
        observed_generation=resource.metadata.generation,
        conditions=conditions_with(resource, ready, now=services.now()),
    )
    write_status(services, resource, status)
    return seconds


def tell(services: Services, resource: Resource, reason: str, message: str) -> None:
    """An Event. It is lost where Kubernetes refuses it: a condition says the same."""
    try:
        services.kube.record_event(resource, reason, message, services.now())
    except KubeError as error:
        logger.warning("no Event for %s: %s: %s", resource.name, message, error)


def replace_ready(
    status: Mapping[str, Any], reason: Reason, message: str, generation: int | None, now: datetime
) -> dict[str, Any]:
    """A status as it came with ``Ready`` set to False; for resources that cannot be decoded."""
    current = []
    for condition in status.get("conditions") or ():
        try:
            current.append(msgspec.convert(condition, Condition))
        except msgspec.ValidationError:
            continue
    conditions = set_condition(
        current, ConditionType.READY, False, reason, message, generation=generation, now=now
    )
    return {
        **status,
        "observedGeneration": generation,
        "conditions": [msgspec.to_builtins(c) for c in conditions],
    }
