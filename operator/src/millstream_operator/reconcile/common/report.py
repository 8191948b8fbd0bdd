"""Reports the findings of a reconcile: a problem in the resource's status, an Event."""

from __future__ import annotations

import msgspec

from ...kafka.records import AdminError, NotAuthorized
from ...models import Resource
from ...models.conditions import ConditionType, Reason
from ...models.event import Event, EventType
from ...models.problem import Problem, conditions_with
from ...state.cache import key_for
from ...state.context import Statuses
from ...state.events import record
from ...state.status import write_status


def problem_of(error: AdminError, what: str = "") -> Problem:
    """Why brokers did not carry out a request. ``what`` it was about begins the message, unless the operator itself is
    refused."""
    if isinstance(error, NotAuthorized):
        words = f"{error}: add the operator's principal to super.users of the Cluster"
        return Problem(Reason.OPERATOR_NOT_AUTHORIZED, words)
    return Problem(Reason.CLUSTER_NOT_READY, f"{what}: {error}" if what else str(error))


def report_problem(services: Statuses, resource: Resource, problem: Problem, seconds: float) -> float:
    """Report a problem; returns ``seconds``, until the next reconcile. The rest of the status stays as last seen."""
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
