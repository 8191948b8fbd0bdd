"""The workload of a ConsumerGroup: the number of consumers that it needs, and its part of the status; pure.

Implementations of ``Workloads`` run the consumers: Deployments on Kubernetes, processes on a laptop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..conditions import ConditionType, Reason
from ..models import ConsumerGroup, ConsumerGroupStatus
from ..services import Services
from .group import GroupCondition
from .problem import Problem

Decide = Callable[[int | None], int]
"""From the present number of consumers (None: the workload does not exist) to the desired one."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers of a workload.

    ``wanted`` is their intended number, ``failure`` why one does not run, ``problem`` why the workload cannot be
    created.
    """

    wanted: int = 0
    replicas: int = 0
    ready: int = 0
    selector: str | None = None
    failure: str = ""
    problem: Problem | None = None


class Workloads(Protocol):
    """Runs workloads."""

    def run(
        self, services: Services, group: ConsumerGroup, bootstrap: str, decide: Decide, *, paused: bool
    ) -> Consumers:
        """Apply the resource's workload, unless it is paused; returns its state."""

    def stop(self, services: Services, group: ConsumerGroup) -> str:
        """Stop the consumers. Returns what it waits for, empty once none is left."""


def has_workload(group: ConsumerGroup) -> bool:
    """Whether the resource has, or had when its status was written, a workload."""
    return group.spec.workload is not None or group.status.selector is not None


def with_consumers(status: ConsumerGroupStatus, consumers: Consumers | None) -> ConsumerGroupStatus:
    """The status with the workload's state."""
    if consumers is None:
        return status
    return msgspec.structs.replace(
        status, replicas=consumers.replicas, ready_replicas=consumers.ready, selector=consumers.selector
    )


def workload_conditions(consumers: Consumers | None) -> list[GroupCondition]:
    """The conditions about the workload."""
    if consumers is None:
        return []
    kind = ConditionType.WORKLOAD_READY
    if (problem := consumers.problem) is not None:
        found: list[GroupCondition] = [(kind, False, problem.reason, problem.message)]
        return [*found, (ConditionType.READY, False, problem.reason, problem.message)]
    words = f"{consumers.ready} of {consumers.wanted} consumers are ready"
    if consumers.replicas > consumers.wanted:
        words += f"; {consumers.replicas - consumers.wanted} are to end"
    if consumers.failure:
        return [(kind, False, Reason.WORKLOAD_FAILED, f"{words}; {consumers.failure}")]
    if consumers.ready < consumers.wanted or consumers.replicas > consumers.wanted:
        return [(kind, False, Reason.WORKLOAD_STARTING, words)]
    return [(kind, True, Reason.WORKLOAD_READY, words)]
