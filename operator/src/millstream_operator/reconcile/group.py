"""ConsumerGroup: shows a group's state, members and lag; sets where it starts, once.

A group belongs to its consumers. The only thing this writes is a first commit: for a topic of the list in which the
group has no committed offset, while it has no members, the offsets that ``startAt`` names. The ConsumerGroups of one
Cluster are looked at together.

Lag in records is log end minus committed offset, as Kafka's tools count it. Lag in seconds is the age of the oldest
record that is not consumed, found without reading records: ListOffsets answers which offset is the first at or after a
time; the record at the committed offset is at least that late exactly if that offset is not behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..conditions import ConditionType, Reason
from ..kafka_admin import EARLIEST, LATEST, AdminError, GroupState, KafkaAdmin, Partition
from ..models import (
    Cluster,
    ConsumerGroup,
    ConsumerGroupSpec,
    ConsumerGroupStatus,
    Lag,
    MaxLag,
    Member,
    TopicLag,
)
from ..services import Services
from ..status import hold_finalizer, write_status
from ..store import Key, key_for
from .deletion import end_without, let_go, owes_deletion, wait
from .reference import cluster_key, find_cluster, rival
from .report import Problem, conditions_with, report_problem

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
PROBLEM_INTERVAL_S = 30.0
WAITING_INTERVAL_S = 5.0
MAX_MEMBERS = 100  # shown in status
IDLE_STATES = frozenset(("Empty", "Dead"))  # nobody is in the group: offsets may be committed from outside
OLDEST_S = 2**31  # 68 years: where the search for a record's age ends


@dataclass(frozen=True, slots=True)
class Observed:
    """A group and the logs it reads. ``ends``: by partition of its topics. ``missing``: topics there are not."""

    state: GroupState
    committed: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    missing: tuple[str, ...] = ()


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
    """Records not yet consumed, where the group has committed an offset."""
    return {
        partition: max(0, observed.ends[partition] - offset)
        for partition, offset in observed.committed.items()
        if partition in observed.ends
    }


def lag_seconds(
    behind: Mapping[Partition, int],
    now_ms: int,
    find: Callable[[Mapping[Partition, int]], Mapping[Partition, int]],
) -> int:
    """The age of the oldest record at one of these offsets, to a tenth; ``find`` is ListOffsets by time.

    All partitions at once: double the age until no partition's record is older, then halve the last step.
    """
    if not behind:
        return 0

    def older_than(seconds: int) -> bool:
        found = find(dict.fromkeys(behind, max(0, now_ms - seconds * 1000)))
        return any(found[partition] < 0 or found[partition] > offset for partition, offset in behind.items())

    high = 1
    while high < OLDEST_S and older_than(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high / 10):
        middle = (low + high) // 2
        if older_than(middle):
            low = middle
        else:
            high = middle
    return high


def above(max_lag: MaxLag, lag: Lag) -> str | None:
    """How the lag is above what is allowed, in words."""
    if max_lag.records is not None and (lag.records or 0) > max_lag.records:
        return f"{lag.records} records behind, maxLag is {max_lag.records}"
    if max_lag.seconds is not None and (lag.seconds or 0) > max_lag.seconds:
        return f"{lag.seconds} seconds behind, maxLag is {max_lag.seconds}"
    return None


def build_status(
    group: ConsumerGroup, observed: Observed, seconds: int, now: datetime
) -> ConsumerGroupStatus:
    """What the resource shall show."""
    lags = lag_by_partition(observed)
    topics = sorted({partition.topic for partition in observed.ends})
    lag = Lag(records=sum(lags.values()), seconds=_steady(group.status.lag, sum(lags.values()), seconds))
    conditions: list[tuple[ConditionType, bool | None, Reason, str]] = [_ready(observed)]
    dropped: tuple[ConditionType, ...] = (ConditionType.LAGGING,)
    if group.spec.max_lag is not None:
        words = above(group.spec.max_lag, Lag(records=lag.records, seconds=seconds))
        reason = Reason.ABOVE_MAX_LAG if words else Reason.WITHIN_MAX_LAG
        conditions.append((ConditionType.LAGGING, bool(words), reason, words or "the lag is within maxLag"))
        dropped = ()
    return ConsumerGroupStatus(
        observed_generation=group.metadata.generation,
        state=observed.state.state,
        member_count=len(observed.state.members),
        members=tuple(
            Member(
                client_id=member.client_id, host=member.host, partitions=tuple(map(_text, member.partitions))
            )
            for member in observed.state.members[:MAX_MEMBERS]
        ),
        lag=lag,
        topics=tuple(
            TopicLag(
                topic=topic,
                partitions=sum(partition.topic == topic for partition in observed.ends),
                lag=sum(records for partition, records in lags.items() if partition.topic == topic),
            )
            for topic in topics
        ),
        conditions=conditions_with(group, *conditions, now=now, without=dropped),
    )


def _ready(observed: Observed) -> tuple[ConditionType, bool, Reason, str]:
    if observed.missing:
        words = f"there is no topic {', '.join(observed.missing)}"
        return ConditionType.READY, False, Reason.TOPIC_NOT_FOUND, words
    words = "the group exists" if observed.state.state != "Dead" else "no consumer has used the group yet"
    return ConditionType.READY, True, Reason.GROUP_OBSERVED, words


def _steady(before: Lag | None, records: int, seconds: int) -> int:
    """While nothing is consumed or produced the age only grows: shown anew when it has grown by a tenth."""
    old = before.seconds if before is not None and before.records == records else None
    return old if old is not None and records and 0 <= seconds - old <= old // 10 else seconds


def reconcile_groups(services: Services, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    """One look at ConsumerGroups of one Cluster; returns seconds until the next look by ConsumerGroup."""
    again: dict[Key, float] = {}
    mine: list[ConsumerGroup] = []
    cluster: Cluster | None = None
    for group in groups:
        found = find_cluster(services, group.namespace, group.spec.cluster_ref)
        problem = found if isinstance(found, Problem) else conflict(services, group, found)
        if isinstance(found, Cluster):
            cluster = found
        if problem is None:
            mine.append(group)
        elif group.metadata.deletion_timestamp is not None:
            again[key_for(group)] = end_without(services, group, _title(group), problem)
        else:
            again[key_for(group)] = report_problem(services, group, problem, PROBLEM_INTERVAL_S)
    if cluster is not None:
        admin = services.admins.at(services.address_of(cluster))
        again.update(_delete(services, admin, [g for g in mine if g.metadata.deletion_timestamp is not None]))
        again.update(_look(services, admin, [g for g in mine if g.metadata.deletion_timestamp is None]))
    return again


def conflict(services: Services, group: ConsumerGroup, cluster: Cluster) -> Problem | None:
    """Does an older ConsumerGroup name the same group?"""
    other = rival(
        services, group, cluster, cluster_key(group.namespace, group.spec.cluster_ref), group.group_id
    )
    if other is None:
        return None
    return Problem(
        Reason.CONFLICTING_GROUP,
        f"group {group.group_id} of Cluster {cluster.name} belongs to the older ConsumerGroup {other.name} "
        f"in namespace {other.namespace}",
    )


def observe(admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> dict[str, Observed]:
    """The groups as they are, with a handful of requests for all of them; makes first commits on the way."""
    ids = [group.group_id for group in groups]
    states, committed = admin.groups(ids), admin.committed(ids)
    topics = {topic for group in groups for topic in group.spec.topics}
    topics |= {partition.topic for offsets in committed.values() for partition in offsets}
    partitions = admin.partitions(topics)
    for group in groups:
        state, offsets = states[group.group_id].state, committed.get(group.group_id, {})
        if start := plan_start(group.spec, state, offsets, partitions):
            when = EARLIEST if group.spec.start_at == "Earliest" else LATEST
            first = admin.offsets(dict.fromkeys(start, when))
            refused = admin.commit(group.group_id, first)
            if refused is not None:  # a consumer has joined meanwhile: the group is theirs
                logger.info("%s: %s", key_for(group), refused)
                continue
            committed[group.group_id] = {**offsets, **first}
            states.update(admin.groups([group.group_id]))
    everything = [Partition(topic, index) for topic, count in partitions.items() for index in range(count)]
    ends = admin.offsets(dict.fromkeys(everything, LATEST))
    result = {}
    for group in groups:
        offsets = committed.get(group.group_id, {})
        own = {*group.spec.topics, *(partition.topic for partition in offsets)}
        result[group.group_id] = Observed(
            state=states[group.group_id],
            committed=offsets,
            ends={partition: end for partition, end in ends.items() if partition.topic in own},
            missing=tuple(topic for topic in group.spec.topics if topic not in partitions),
        )
    return result


def _look(services: Services, admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    if not groups:
        return {}
    for group in groups:
        hold_finalizer(services, group, group.spec.deletion_policy == "Delete")
    try:
        observed = observe(admin, groups)
        now = services.now()
        seconds = {
            group_id: lag_seconds(_behind(seen), int(now.timestamp() * 1000), admin.offsets)
            for group_id, seen in observed.items()
        }
    except AdminError as error:
        problem = Problem(Reason.CLUSTER_NOT_READY, str(error))
        return {
            key_for(group): report_problem(services, group, problem, WAITING_INTERVAL_S) for group in groups
        }
    for group in groups:
        write_status(
            services, group, build_status(group, observed[group.group_id], seconds[group.group_id], now)
        )
    return dict.fromkeys(map(key_for, groups), INTERVAL_S)


def _behind(observed: Observed) -> dict[Partition, int]:
    return {p: observed.committed[p] for p, records in lag_by_partition(observed).items() if records}


KEPT = ("NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND")
"""Refusals that are final: the group has members, who keep their offsets, or there is none."""


def _delete(services: Services, admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    """Delete the offsets of groups whose resource is being deleted, if its policy says so, and let it go."""
    doomed = [group for group in groups if owes_deletion(group)]
    again: dict[Key, float] = {}
    waits: dict[str, str] = {}
    try:
        for group_id, no in (admin.delete_groups([g.group_id for g in doomed]) if doomed else {}).items():
            if no is None:
                continue
            if no.is_one_of(*KEPT):
                logger.info("group %s is not deleted: %s", group_id, no)
            else:
                waits[group_id] = str(no)
    except AdminError as error:
        waits = {group.group_id: str(error) for group in doomed}
    for group in groups:
        if group in doomed and group.group_id in waits:
            again[key_for(group)] = wait(services, group, _title(group), waits[group.group_id])
        else:
            again[key_for(group)] = let_go(services, group, _title(group))
    return again


def _title(group: ConsumerGroup) -> str:
    return f"offsets of group {group.group_id}"


def _text(partition: Partition) -> str:
    return f"{partition.topic}-{partition.partition}"
