"""ConsumerGroup: reports a group's state, members and lag; sets its start position, once.

group.py plans; this module queries the brokers and carries the plan out. The ConsumerGroups of one Cluster are
reconciled together. Nothing is committed while the resource is paused by its annotation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from ..conditions import Reason
from ..kafka_admin import KafkaAdmin
from ..kafka_records import EARLIEST, LATEST, AdminError, Partition
from ..lag_age import OffsetTimes
from ..models import Cluster, ConsumerGroup
from ..services import Services
from ..status import hold_finalizer, write_status
from ..store import Key, key_for
from .deletion import let_go, owes_deletion, wait
from .group import Observed, build_status, lag_by_partition, plan_start, wanted_ages
from .problem import Problem, is_paused
from .reference import rival_problem
from .report import report_problem
from .together import sort_out

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
WAITING_INTERVAL_S = 5.0


def reconcile_groups(services: Services, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    """One look at ConsumerGroups of one Cluster; returns seconds until the next look by ConsumerGroup."""
    found = sort_out(services, groups, conflict, _title)
    if found.cluster is not None:
        address = services.address_of(found.cluster)
        admin = services.admins.at(address)
        found.again.update(_delete(services, admin, found.deleted))
        times = services.offset_times.setdefault(address, OffsetTimes())
        found.again.update(_look(services, admin, times, found.wanted))
    return found.again


def conflict(services: Services, group: ConsumerGroup, cluster: Cluster) -> Problem | None:
    """The conflict with an older ConsumerGroup that names the same group, if any."""
    return rival_problem(services, group, cluster, group.group_id, "group", Reason.CONFLICTING_GROUP)


def observe(admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> dict[str, Observed]:
    """The state of the groups, in a handful of requests for all of them; also makes first commits."""
    ids = [group.group_id for group in groups]
    states, committed = admin.groups(ids), admin.committed(ids)
    topics = {topic for group in groups for topic in group.spec.topics}
    topics |= {partition.topic for offsets in committed.values() for partition in offsets}
    partitions = admin.partitions(topics)
    for group in groups:
        state, offsets = states[group.group_id].state, committed.get(group.group_id, {})
        if not is_paused(group) and (start := plan_start(group.spec, state, offsets, partitions)):
            when = EARLIEST if group.spec.start_at == "Earliest" else LATEST
            first = admin.offsets(dict.fromkeys(start, when))
            refused = admin.commit(group.group_id, first)
            if refused is not None:  # a consumer has just joined: the group is theirs
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


def _look(
    services: Services, admin: KafkaAdmin, times: OffsetTimes, groups: Sequence[ConsumerGroup]
) -> Mapping[Key, float]:
    if not groups:
        return {}
    for group in groups:
        hold_finalizer(services, group, group.spec.deletion_policy == "Delete")
    try:
        observed = observe(admin, groups)
        now = services.now()
        seconds = _seconds_behind(groups, observed, admin, times, now)
    except AdminError as error:
        problem = Problem(Reason.CLUSTER_NOT_READY, str(error))
        return {
            key_for(group): report_problem(services, group, problem, WAITING_INTERVAL_S) for group in groups
        }
    for group in groups:
        seen, age = observed[group.group_id], seconds[group.group_id]
        services.metrics.lags.put(key_for(group), sum(lag_by_partition(seen).values()), age)
        write_status(services, group, build_status(group, seen, age, now))
    return dict.fromkeys(map(key_for, groups), INTERVAL_S)


def _seconds_behind(
    groups: Sequence[ConsumerGroup],
    observed: Mapping[str, Observed],
    admin: KafkaAdmin,
    times: OffsetTimes,
    now: datetime,
) -> dict[str, int]:
    """The age of each group's oldest unread record, by group id; 0 when it has read all."""
    now_ms = int(now.timestamp() * 1000)
    for seen in observed.values():
        times.saw_ends(seen.ends, now_ms)
    times.forget_unseen(now_ms)
    wanted = {group.group_id: wanted_ages(group, observed[group.group_id]) for group in groups}
    ages = times.ages([one for several in wanted.values() for one in several], now_ms, admin.offsets)
    return {group_id: max((ages[one] for one in several), default=0) for group_id, several in wanted.items()}


def _delete(services: Services, admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    """Delete the offsets of groups whose resource is being deleted, if its policy says so, and let it go."""
    doomed = [group for group in groups if owes_deletion(group)]
    again: dict[Key, float] = {}
    waits: dict[str, str] = {}
    try:
        for group_id, no in (admin.delete_groups([g.group_id for g in doomed]) if doomed else {}).items():
            if no is None or no.is_one_of("GROUP_ID_NOT_FOUND"):
                continue
            has_members = no.is_one_of("NON_EMPTY_GROUP")
            waits[group_id] = "the group has members: stop its consumers" if has_members else str(no)
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
