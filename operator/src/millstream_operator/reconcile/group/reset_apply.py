"""Carries out resets of groups: records the intent, commits together with the mark, verifies the topics.

reset.py plans. The process may end between any two of these steps; the next one continues.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from datetime import datetime

import msgspec

from ...kafka.admin import KafkaAdmin
from ...kafka.records import EARLIEST, LATEST, MARK_PARTITION, AdminError, Partition
from ...models import ConsumerGroup, LastReset, Reset
from ...models.conditions import ConditionType, Reason
from ...models.problem import PAUSED, NewCondition, is_paused
from ...state.cache import key_for
from ...state.context import GroupParts
from ...state.status import write_status
from . import reset_mark
from .observe import take_back
from .plan import IDLE_STATES, Observed
from .reset import (
    Logs,
    Refused,
    done_words,
    ended,
    known_end,
    plan,
    positions,
    requested,
    running,
    steps,
    topics_of,
    waiting_words,
    when_of,
)
from .reset_mark import ResetMark

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Advanced:
    """A group after this reconcile of its reset.

    ``group`` is as the API server has it, ``seen`` as the brokers have it; ``last`` and ``condition`` are for its
    status.
    """

    group: ConsumerGroup
    seen: Observed
    last: LastReset | None
    condition: NewCondition | None

    @property
    def ended_now(self) -> bool:
        """Whether a reset ended in this reconcile."""
        return (
            self.last is not None
            and self.last.state != "Running"
            and self.last != self.group.status.last_reset
        )


def advance(services: GroupParts, admin: KafkaAdmin, group: ConsumerGroup, seen: Observed) -> Advanced:
    """Let a group's reset continue as far as it can."""
    try:
        return _advance(services, admin, group, seen)
    except AdminError as error:  # only this group's error: the others succeeded
        condition = (ConditionType.RESET, False, Reason.CLUSTER_NOT_READY, str(error))
        return Advanced(group, seen, group.status.last_reset, condition)


def _advance(services: GroupParts, admin: KafkaAdmin, group: ConsumerGroup, seen: Observed) -> Advanced:
    reset, last = requested(group), running(group)
    if last is None and reset is None:
        return Advanced(group, seen, group.status.last_reset, _condition(group, group.status.last_reset))
    mark = reset_mark.read(admin.marks([group.group_id]).get(group.group_id))
    request_id = last.request_id if last is not None else reset.request_id if reset is not None else ""
    known = known_end(request_id, last.time if last is not None else None, mark, services.now())
    if known is not None:
        return Advanced(group, seen, known, _condition(group, known))
    began = services.now()
    if last is not None:
        done, began = mark.steps_of(last.request_id, last.time), last.time
        if not done and (group.spec.reset is None or group.spec.reset.request_id != last.request_id):
            last = ended(last, "Cancelled", services.now())
            return Advanced(group, seen, last, _condition(group, last))
        if done >= len(steps(last)):
            return _finish(services, admin, group, seen, last)
        if not done:
            reset = group.spec.reset
    if is_paused(group):
        _, _, reason, words = PAUSED
        return Advanced(group, seen, group.status.last_reset, (ConditionType.RESET, False, reason, words))
    if seen.state.state not in IDLE_STATES:
        return _waits(group, seen)
    if reset is not None:
        planned = _plan(admin, group, reset, seen, began)
        if isinstance(planned, Refused):
            last = LastReset(
                request_id=reset.request_id, state="Refused", time=services.now(), message=planned.message
            )
            return Advanced(group, seen, last, _condition(group, last))
        last = planned
        status = msgspec.structs.replace(group.status, last_reset=last)
        if status != group.status and not write_status(services, group, status):
            # Another writer has changed the status: the next reconcile starts from it.
            return Advanced(group, seen, group.status.last_reset, None)
        group = msgspec.structs.replace(group, status=status)
    assert last is not None
    return _commit(services, admin, group, seen, last, mark)


def _plan(
    admin: KafkaAdmin, group: ConsumerGroup, reset: Reset, seen: Observed, began: datetime
) -> LastReset | Refused:
    topics = topics_of(group, reset, seen.committed)
    if MARK_PARTITION.topic in topics or any(one == MARK_PARTITION for one in seen.committed):
        return Refused(f"the positions of a group that consumes {MARK_PARTITION.topic} cannot be reset here")
    identities = admin.identities(topics)
    partitions = [
        Partition(name, index) for name, one in identities.items() for index in range(one.partitions)
    ]
    when = when_of(reset)
    logs = Logs(
        identities,
        admin.offsets(dict.fromkeys(partitions, EARLIEST)),
        admin.offsets(dict.fromkeys(partitions, LATEST)),
        admin.offsets(dict.fromkeys(partitions, when)) if when is not None else {},
    )
    return plan(reset, topics, admin.committed([group.group_id])[group.group_id], logs, began)


def _commit(
    services: GroupParts,
    admin: KafkaAdmin,
    group: ConsumerGroup,
    seen: Observed,
    last: LastReset,
    mark: ResetMark,
) -> Advanced:
    left = steps(last)
    for number, offsets in enumerate(left, 1):
        if number <= mark.steps_of(last.request_id, last.time):
            continue
        mark_after = mark.after(last.request_id, last.time, number, is_last=number == len(left))
        refused = admin.commit(group.group_id, offsets, mark_after.written())
        if refused is not None:  # a consumer has just joined, or a topic is gone
            logger.info("%s: reset %s: %s", key_for(group), last.request_id, refused)
            state = admin.groups([group.group_id])[group.group_id]
            if state.members:
                return _waits(group, dataclasses.replace(seen, state=state))
            words = f"request {last.request_id} is not done yet: {refused}"
            condition = (ConditionType.RESET, False, Reason.REFUSED, words)
            return Advanced(group, seen, group.status.last_reset, condition)
        mark = mark_after
    return _finish(services, admin, group, seen, last)


def _finish(
    services: GroupParts, admin: KafkaAdmin, group: ConsumerGroup, seen: Observed, last: LastReset
) -> Advanced:
    """All is committed: take back positions in topics that were recreated since the plan."""
    identities = admin.identities([topic.topic for topic in last.topics])
    replaced = [
        topic.topic
        for topic in last.topics
        if topic.topic not in identities or identities[topic.topic].topic_id != topic.topic_id
    ]
    take_back(admin, group.group_id, positions(last), replaced)
    last = ended(last, "Done", services.now(), replaced)
    seen = _seen_anew(admin, group, seen)
    return Advanced(group, seen, last, _condition(group, last))


def _seen_anew(admin: KafkaAdmin, group: ConsumerGroup, seen: Observed) -> Observed:
    """The group's positions after a reset, in topics whose ends are known."""
    committed: Mapping[Partition, int] = admin.committed([group.group_id])[group.group_id]
    state = admin.groups([group.group_id])[group.group_id]
    return dataclasses.replace(seen, state=state, committed=committed)


def _waits(group: ConsumerGroup, seen: Observed) -> Advanced:
    words = waiting_words(seen.state.members)
    condition = (ConditionType.RESET, False, Reason.WAITING_FOR_MEMBERS, words)
    return Advanced(group, seen, group.status.last_reset, condition)


def _condition(group: ConsumerGroup, last: LastReset | None) -> NewCondition | None:
    """The condition of the spec's reset; None if it has none."""
    if group.spec.reset is None or last is None:
        return None
    if last.state == "Done":
        return ConditionType.RESET, True, Reason.RESET_DONE, done_words(last)
    if last.state == "Refused":
        words = f"request {last.request_id}: {last.message}"
        return ConditionType.RESET, False, Reason.RESET_REFUSED, words
    return ConditionType.RESET, False, Reason.RESET_CANCELLED, f"request {last.request_id} was cancelled"
