"""Reports the findings of a reconcile: a problem in the resource's status, an Event."""

from __future__ import annotations

import msgspec

from ...models import Resource
from ...models.conditions import ConditionType
from ...models.event import Event, EventType
from ...models.problem import Problem, conditions_with
from ...state.cache import key_for
from ...state.context import Statuses
from ...state.events import record
from ...state.status import write_status


def report_problem(services: Statuses, resource: Resource, problem: Problem, seconds: float) -> float:
    """Report what is wrong; returns ``seconds``, until the next look. The rest of the status stays as last seen."""
    ready = (ConditionType.READY, False, problem.reason, problem.message)
    status = msgspec.structs.replace(
        resource.status,  # type: ignore[attr-defined]  # every kind has one
        observed_generation=resource.metadata.generation,
        conditions=conditions_with(resource, ready, now=services.now()),
    )
    write_status(services, resource, status)
    return seconds


def tell(
    services: Statuses, resource: Resource, reason: str, message: str, kind: EventType = EventType.NORMAL
) -> None:
    """Write an Event about something that no status shows."""
    record(services, key_for(resource), resource.metadata.uid, Event(kind, reason, message))
