"""The workload of a ConsumerGroup: the number of consumers that it needs, and its part of the status; pure."""

from __future__ import annotations

import msgspec

from ...models import ConsumerGroup, ConsumerGroupStatus
from ...models.conditions import ConditionType, Reason
from ...models.consumers import Consumers
from ...models.problem import NewCondition


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


def workload_conditions(consumers: Consumers | None) -> list[NewCondition]:
    """The conditions about the workload."""
    if consumers is None:
        return []
    kind = ConditionType.WORKLOAD_READY
    if (problem := consumers.problem) is not None:
        found: list[NewCondition] = [(kind, False, problem.reason, problem.message)]
        return [*found, (ConditionType.READY, False, problem.reason, problem.message)]
    words = f"{consumers.ready} of {consumers.wanted} consumers are ready"
    if consumers.replicas > consumers.wanted:
        words += f"; {consumers.replicas - consumers.wanted} are to end"
    if consumers.failure:
        return [(kind, False, Reason.WORKLOAD_FAILED, f"{words}; {consumers.failure}")]
    if consumers.ready < consumers.wanted or consumers.replicas > consumers.wanted:
        return [(kind, False, Reason.WORKLOAD_STARTING, words)]
    return [(kind, True, Reason.WORKLOAD_READY, words)]
