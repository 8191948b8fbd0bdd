"""ConsumerGroup: reports a group's state, members and lag; sets its start position, once.

plan.py plans; this module carries the plan out. The ConsumerGroups of one Cluster are reconciled together. Nothing is
committed while the resource is paused by its annotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from millstream_kafka.protocol.errors import ErrorCode

from ...kafka.admin import KafkaAdmin
from ...kafka.lag_age import OffsetTimes
from ...kafka.records import AdminError
from ...models import Cluster, ConsumerGroup
from ...models.conditions import Reason
from ...models.consumers import Consumers
from ...models.keys import Key
from ...models.problem import Problem, is_paused
from ...state.cache import key_for
from ...state.context import GroupParts, Resources
from ...state.group_memory import GroupMemory
from ...state.lags import Measured
from ...state.status import hold_finalizer, write_status
from ..common.deletion import needs_cleanup, release_resource, wait
from ..common.reference import find_cluster, rival_problem
from ..common.report import report_problem
from ..common.shared_cluster import partition_by_readiness
from .observe import observe
from .plan import Observed, build_status, lag_by_partition, wanted_ages
from .reset import requested, running
from .reset_apply import Advanced, advance
from .scaling import decide, load_of
from .stuck import digest_of, standing
from .workload import has_workload, with_consumers, workload_conditions

LAG_AGE_S = 8.5
"""At this age a lag is replaced by a new one, if a reconcile takes as long as the one before it. The rest of the
promised ten seconds is for reconciles that wait or take longer."""
WAITING_INTERVAL_S = 5.0
SOON_S = 2.0


def reconcile_groups(services: GroupParts, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    """One reconcile of ConsumerGroups of one Cluster; returns seconds until the next reconcile by ConsumerGroup."""
    found = partition_by_readiness(services, groups, conflict, _title)
    _stop_forbidden(services, [group for group in groups if key_for(group) in found.again])
    if found.cluster is not None:
        address = services.address_of(found.cluster)
        admin = services.brokers_of(found.cluster)
        found.again.update(_delete(services, admin, found.deleted))
        times = services.offset_times.setdefault(address, OffsetTimes())
        found.again.update(_look(services, admin, times, found.wanted, found.cluster))
    return found.again


def _stop_forbidden(services: GroupParts, groups: Sequence[ConsumerGroup]) -> None:
    """Stop the workloads of groups whose namespace the Cluster no longer allows.

    With any other problem the consumers stay, because their brokers may well be running.
    """
    for group in groups:
        cluster = find_cluster(services, group.namespace, group.spec.cluster_ref)
        forbidden = isinstance(cluster, Problem) and cluster.reason == Reason.NAMESPACE_NOT_ALLOWED
        if forbidden and has_workload(group) and not is_paused(group):
            services.workloads.stop(services, group)


def conflict(services: Resources, group: ConsumerGroup, cluster: Cluster) -> Problem | None:
    """The conflict with an older ConsumerGroup that names the same group, if any."""
    return rival_problem(services, group, cluster, group.group_id, "group", Reason.CONFLICTING_GROUP)


def _look(
    services: GroupParts,
    admin: KafkaAdmin,
    times: OffsetTimes,
    groups: Sequence[ConsumerGroup],
    cluster: Cluster,
) -> Mapping[Key, float]:
    if not groups:
        return {}
    begun, measured = services.now(), services.metrics.lags.clock()
    for group in groups:
        hold_finalizer(services, group, group.spec.deletion_policy == "Delete")
    problems: dict[str, Problem] = {}
    advanced: list[Advanced] = []
    observed: dict[str, Observed] = {}
    try:
        for group_id, found in observe(admin, groups).items():
            if isinstance(found, Problem):
                problems[group_id] = found
            else:
                observed[group_id] = found
        seen_groups = [group for group in groups if group.group_id in observed]
        advanced = [advance(services, admin, group, observed[group.group_id]) for group in seen_groups]
        observed = {one.group.group_id: one.seen for one in advanced}
        now = services.now()
        seconds = _seconds_behind([one.group for one in advanced], observed, admin, times, now)
        for one in advanced:  # first, because the other steps take time
            records = sum(lag_by_partition(one.seen).values())
            lag = Measured(records, seconds[one.group.group_id], measured)
            services.metrics.lags.put(key_for(one.group), lag)
    except AdminError as error:
        problems = dict.fromkeys(
            (group.group_id for group in groups), Problem(Reason.CLUSTER_NOT_READY, str(error))
        )
        advanced = []
    again = {}
    for group in groups:
        if (problem := problems.get(group.group_id)) is not None:
            run_workload(services, group, cluster, None)
            again[key_for(group)] = report_problem(services, group, problem, WAITING_INTERVAL_S)
    for one in advanced:
        group = one.group
        seen, age = observed[group.group_id], seconds[group.group_id]
        records = sum(lag_by_partition(seen).values())
        memory = services.group_memories.setdefault(group.metadata.uid, GroupMemory())
        memory.standstill = standing(
            memory.standstill or group.status.stuck, digest_of(seen.committed, seen.topic_ids), records, now
        )
        consumers = run_workload(services, group, cluster, seen)
        conditions = [
            *([one.condition] if one.condition is not None else []),
            *workload_conditions(consumers),
        ]
        status = build_status(
            group, seen, age, memory.standstill, now, last_reset=one.last, others=conditions
        )
        status = with_consumers(status, consumers)
        write_status(services, group, status)
    took = (services.now() - begun).total_seconds()
    return again | {key_for(one.group): _next_look(one, took) for one in advanced}


def run_workload(
    services: GroupParts, group: ConsumerGroup, cluster: Cluster, seen: Observed | None
) -> Consumers | None:
    """Run the consumers of a group's workload; None if it has none. ``seen``: None while no broker responds."""
    workloads = services.workloads
    workload = group.spec.workload
    if workload is None:
        if group.status.selector is None or is_paused(group) or not workloads.stop(services, group):
            return None
        return Consumers(replicas=group.status.replicas or 0, selector=group.status.selector)

    memory = services.group_memories.setdefault(group.metadata.uid, GroupMemory())

    def wanted(present: int | None) -> int:
        if (scaling := workload.scaling) is None:
            return 1 if workload.replicas is None else workload.replicas
        if seen is None:  # an unknown lag changes nothing
            return scaling.min if present is None else present
        load = load_of(group, seen)
        count, memory.scaling = decide(scaling, load, present, memory.scaling, services.now())
        return count

    return workloads.run(
        services, group, cluster, wanted, paused=is_paused(group), is_reachable=seen is not None
    )


def _next_look(one: Advanced, took: float) -> float:
    """Seconds from the end of an observation that took ``took`` seconds to the next one, which may be as slow.

    After a slow observation, the brokers rest for half its time. A waiting reset continues soon after the last member
    has left.
    """
    if not one.ended_now and (running(one.group) or requested(one.group)):
        return SOON_S
    return min(LAG_AGE_S, max(LAG_AGE_S - 2 * took, took / 2))


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
        times.saw_topics(seen.topic_ids)
        times.saw_ends(seen.ends, now_ms)
    times.forget_unseen(now_ms)
    wanted = {group.group_id: wanted_ages(group, observed[group.group_id]) for group in groups}
    ages = times.ages([one for several in wanted.values() for one in several], now_ms, admin.offsets)
    return {group_id: max((ages[one] for one in several), default=0) for group_id, several in wanted.items()}


def _delete(services: GroupParts, admin: KafkaAdmin, groups: Sequence[ConsumerGroup]) -> Mapping[Key, float]:
    """Delete the offsets of groups whose resource is being deleted, if its policy says so, and release the resource."""
    doomed = [group for group in groups if needs_cleanup(group)]
    again: dict[Key, float] = {}
    workloads = services.workloads
    stopping = {group.group_id: workloads.stop(services, group) for group in doomed if has_workload(group)}
    waits = {group_id: why for group_id, why in stopping.items() if why}
    empty = [group.group_id for group in doomed if group.group_id not in waits]
    try:
        for group_id, no in (admin.delete_groups(empty) if empty else {}).items():
            if no is None or no.error == ErrorCode.GROUP_ID_NOT_FOUND.name:
                continue
            has_members = no.error == ErrorCode.NON_EMPTY_GROUP.name
            waits[group_id] = "the group has members: stop its consumers" if has_members else str(no)
    except AdminError as error:
        waits |= dict.fromkeys(empty, str(error))
    for group in groups:
        if group in doomed and group.group_id in waits:
            again[key_for(group)] = wait(services, group, _title(group), waits[group.group_id])
        else:
            again[key_for(group)] = release_resource(services, group, _title(group))
    return again


def _title(group: ConsumerGroup) -> str:
    return f"offsets of group {group.group_id}"
