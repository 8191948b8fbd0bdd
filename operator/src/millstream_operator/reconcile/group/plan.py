"""ConsumerGroup: start position, lag and status of a group; pure.

A group belongs to its consumers. The only plan is a first commit, of the offsets that ``startAt`` names: for each
listed topic in which the group has no committed offset, while the group has no members.

Lag in records is log end minus committed offset, at least 0. A partition without a commit has no lag: Kafka's tools,
`millstream group describe` and the metrics of brokers count the same. Lag in seconds is the age of the oldest
unconsumed record, determined without reading records (see kafka/lag_age.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ...kafka.lag_age import Wanted
from ...kafka.records import GroupState, Partition
from ...models import (
    ConsumerGroup,
    ConsumerGroupSpec,
    ConsumerGroupStatus,
    Lag,
    LastReset,
    MaxLag,
    Member,
    Standstill,
    TopicLag,
)
from ...models.conditions import ConditionType, Reason
from ...models.problem import NewCondition, conditions_with
from .stuck import is_stuck

MAX_MEMBERS = 100  # shown in status
MAX_ASSIGNED = 100  # partitions of a member, shown in status
SOMETIMES = (ConditionType.RESET, ConditionType.WORKLOAD_READY)  # conditions that only some groups have
IDLE_STATES = frozenset(("Empty", "Dead"))  # nobody is in the group, so other clients may commit offsets


@dataclass(frozen=True, slots=True)
class Observed:
    """A group and the logs it reads.

    ``ends`` are log ends by partition; ``missing`` are topics that do not exist; ``topic_ids`` are the ids, by topic,
    of the topics in ``committed`` and ``ends``.
    """

    state: GroupState
    committed: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    missing: tuple[str, ...] = ()
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)


def plan_start(
    spec: ConsumerGroupSpec, state: str, committed: Collection[Partition], partitions: Mapping[str, int]
) -> tuple[Partition, ...]:
    """The partitions that need a first commit: all those of listed topics in which the group has no offset at all."""
    if spec.start_at is None or state not in IDLE_STATES:
        return ()
    known = {partition.topic for partition in committed}
    return tuple(
        Partition(topic, index)
        for topic in spec.topics
        if topic not in known
        for index in range(partitions.get(topic, 0))
    )


def lag_by_partition(observed: Observed) -> dict[Partition, int]:
    """The number of unconsumed records of each partition with a committed offset."""
    return {
        partition: max(0, observed.ends[partition] - offset)
        for partition, offset in observed.committed.items()
        if partition in observed.ends
    }


def wanted_ages(group: ConsumerGroup, observed: Observed) -> list[Wanted]:
    """The records whose age is the group's lag: the first unread one of each partition."""
    limit = group.spec.max_lag.seconds if group.spec.max_lag is not None else None
    return [
        Wanted(partition, observed.committed[partition], limit)
        for partition, records in lag_by_partition(observed).items()
        if records
    ]


def above(max_lag: MaxLag, lag: Lag) -> str | None:
    """The limit that the lag exceeds, in words that do not change while it does; None if it is within all."""
    if max_lag.records is not None and (lag.records or 0) > max_lag.records:
        return f"the lag is above maxLag.records: {max_lag.records}"
    if max_lag.seconds is not None and (lag.seconds or 0) > max_lag.seconds:
        return f"the lag is above maxLag.seconds: {max_lag.seconds}"
    return None


def build_status(
    group: ConsumerGroup,
    observed: Observed,
    seconds: int,
    standstill: Standstill,
    now: datetime,
    *,
    last_reset: LastReset | None = None,
    others: Sequence[NewCondition] = (),
) -> ConsumerGroupStatus:
    """The resource's status.

    ``seconds`` is the age of the oldest unconsumed record; ``others`` are conditions beside those that follow from the
    observation.
    """
    lags = lag_by_partition(observed)
    counts = Counter(partition.topic for partition in observed.ends)
    by_topic: Counter[str] = Counter()
    for partition, records in lags.items():
        by_topic[partition.topic] += records
    lag = Lag(records=sum(lags.values()), seconds=_steady(group.status.lag, sum(lags.values()), seconds))
    conditions: list[NewCondition] = [_ready(observed)]
    dropped: tuple[ConditionType, ...] = (ConditionType.LAGGING, *SOMETIMES)
    if group.spec.max_lag is not None:
        words = above(group.spec.max_lag, Lag(records=lag.records, seconds=seconds))
        reason = Reason.ABOVE_MAX_LAG if words else Reason.WITHIN_MAX_LAG
        conditions.append((ConditionType.LAGGING, bool(words), reason, words or "the lag is within maxLag"))
        dropped = SOMETIMES
    stuck = is_stuck(standstill, sum(lags.values()), now, group.spec.stuck_after_seconds)
    conditions += [_stuck(group, observed, stuck), *others]
    dropped = tuple(kind for kind in dropped if kind not in {one[0] for one in others})
    return ConsumerGroupStatus(
        observed_generation=group.metadata.generation,
        state=observed.state.state,
        member_count=len(observed.state.members),
        members=tuple(
            Member(
                client_id=member.client_id,
                host=member.host,
                partitions=tuple(map(_text, member.partitions[:MAX_ASSIGNED])),
                partition_count=len(member.partitions),
            )
            for member in observed.state.members[:MAX_MEMBERS]
        ),
        lag=lag,
        topics=tuple(
            TopicLag(
                topic=topic,
                topic_id=observed.topic_ids.get(topic),
                partitions=counts[topic],
                lag=by_topic[topic],
            )
            for topic in sorted(counts)
        ),
        stuck=standstill if stuck else None,
        last_reset=last_reset,
        conditions=conditions_with(group, *conditions, now=now, without=dropped),
    )


def _ready(observed: Observed) -> NewCondition:
    if observed.missing:
        words = f"there is no topic {', '.join(observed.missing)}"
        return ConditionType.READY, False, Reason.TOPIC_NOT_FOUND, words
    if observed.state.state == "Dead":
        words = "the group does not exist yet: no consumer has joined it or committed"
        return ConditionType.READY, True, Reason.GROUP_UNUSED, words
    return ConditionType.READY, True, Reason.GROUP_OBSERVED, "the group exists"


def _stuck(group: ConsumerGroup, observed: Observed, stuck: bool) -> NewCondition:
    if not stuck:
        return ConditionType.STUCK, False, Reason.CONSUMING, "the group commits, or its lag does not grow"
    todo = (
        "look at its consumers' logs" if observed.state.members else "it has no members: start its consumers"
    )
    words = f"the lag grows and nothing was committed for {group.spec.stuck_after_seconds} s: {todo}"
    return ConditionType.STUCK, True, Reason.NOTHING_COMMITTED, words


def _steady(before: Lag | None, records: int, seconds: int) -> int:
    """The age to show. While nothing is consumed or produced, only the age grows: show a growth by a tenth."""
    old = before.seconds if before is not None and before.records == records else None
    return old if old is not None and records and 0 <= seconds - old <= old // 10 else seconds


def _text(partition: Partition) -> str:
    return f"{partition.topic}-{partition.partition}"
