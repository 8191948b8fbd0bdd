"""Topic: creates, adopts, and changes configuration, partitions and replicas; deletes only if the policy says so.

plan.py plans; this module queries the brokers and carries the plans out. The Topics of one Cluster are reconciled
together, so a hundred of them cost a handful of requests. Of two Topics that name one topic the older one has it; the
other reports this, and takes over when the older one is gone. The topic of a Topic that is paused by its annotation is
observed but not changed; deletion works as always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ...kafka.admin import KafkaAdmin
from ...kafka.records import AdminError, Refusal, TopicState
from ...models import Cluster, Topic
from ...models.conditions import ConditionType, Reason
from ...models.keys import ClusterKey, Key
from ...models.problem import PAUSED, NewCondition, Problem, is_paused
from ...state.cache import key_for
from ...state.context import Parts, Resources
from ...state.status import hold_finalizer, write_status
from ..common.deletion import needs_cleanup, release_resource, wait
from ..common.reference import rival_problem
from ..common.report import report_problem
from ..common.shared_cluster import PROBLEM_INTERVAL_S, partition_by_readiness
from ..common.strays import holders, of_lost_partitions
from .plan import TopicPlan, claim, is_replica, plan_topic, problem_of, said, status_of
from .replication_apply import replicate

READY_INTERVAL_S = 60.0
WAITING_INTERVAL_S = 5.0
UNKNOWN_ID: Final = "UNKNOWN_TOPIC_ID"
GONE: Final = ("UNKNOWN_TOPIC_OR_PARTITION", UNKNOWN_ID)
"""Kafka's errors for topics that there are not."""


def reconcile_topics(services: Parts, topics: Sequence[Topic]) -> Mapping[Key, float]:
    """One reconcile of Topics of one Cluster; returns seconds until the next reconcile by Topic."""
    found = partition_by_readiness(services, topics, conflict, _title)
    if found.cluster is not None:
        admin = services.brokers_of(found.cluster)
        found.again.update(_delete(services, admin, found.deleted))
        found.again.update(_bring_about(services, found.cluster, admin, found.wanted))
    return found.again


def conflict(services: Resources, topic: Topic, cluster: Cluster) -> Problem | None:
    """The conflict with an older Topic that names the same topic, if any."""
    return rival_problem(services, topic, cluster, topic.topic_name, "topic", Reason.CONFLICTING_TOPIC)


def _bring_about(
    services: Parts, cluster: Cluster, admin: KafkaAdmin, topics: Sequence[Topic]
) -> Mapping[Key, float]:
    if not topics:
        return {}
    for topic in topics:
        hold_finalizer(services, topic, topic.spec.deletion_policy == "Delete")
    names = [topic.topic_name for topic in topics]
    try:
        observed = admin.topics(names)
        active = [topic for topic in topics if not is_paused(topic)]
        plans = dict.fromkeys(names, TopicPlan())
        absent = any(topic.topic_name not in observed for topic in active)
        grow = any(
            (topic.spec.partitions or 0) > found.partitions
            for topic in active
            if (found := observed.get(topic.topic_name)) is not None
        )
        strays = admin.strays() if absent or grow else []
        for topic in active:
            plans[topic.topic_name] = plan_topic(
                topic.topic_name,
                topic.spec,
                found := observed.get(topic.topic_name),
                topic.status.config_keys or (),
                holders(strays, topic.topic_name, topic.status.topic_id),
                of_lost_partitions(strays, found, topic.spec.partitions) if found is not None else (),
            )
        topics = [_noted(services, topic, plans[topic.topic_name]) for topic in topics]
        refused = apply_plans(admin, plans)
        created = {name for name, plan in plans.items() if plan.create is not None and name not in refused}
        services.store.wake_groups(ClusterKey(cluster.namespace, cluster.name), created)
        if changed := [name for name, plan in plans.items() if not plan.empty]:
            observed = {**observed, **admin.topics(changed)}
        _claim(admin, active, observed)
        replication = replicate(admin, cluster, active, observed)
    except AdminError as error:
        problem = Problem(Reason.CLUSTER_NOT_READY, str(error))
        return {
            key_for(topic): report_problem(services, topic, problem, WAITING_INTERVAL_S) for topic in topics
        }
    return {
        key_for(topic): _report(
            services,
            topic,
            observed.get(topic.topic_name),
            refused.get(topic.topic_name)
            or plans[topic.topic_name].problem
            or replication.problems.get(topic.topic_name),
            beside=said(topic, cluster, observed.get(topic.topic_name), replication),
            config_changed=topic.topic_name not in refused
            and not is_paused(topic)
            and not is_replica(observed.get(topic.topic_name)),
        )
        for topic in topics
    }


def _claim(admin: KafkaAdmin, topics: Sequence[Topic], observed: Mapping[str, TopicState]) -> None:
    """Leave each Topic's name with its topic. Brokers without the setting, or that refuse it, are left alone."""
    found = ((topic, observed.get(topic.topic_name)) for topic in topics)
    if claims := {topic.topic_name: change for topic, state in found if (change := claim(topic, state))}:
        admin.change_configs(claims)


def _noted(services: Parts, topic: Topic, plan: TopicPlan) -> Topic:
    """The Topic, after its status notes the keys that are about to be set.

    So even if the operator dies next, they are reset once the spec no longer names them.
    """
    known = set(topic.status.config_keys or ())
    new = set(plan.change.set if plan.change else ()) - known
    if not new:
        return topic
    status = replace(topic.status, config_keys=tuple(sorted(known | new)))
    write_status(services, topic, status)
    return replace(topic, status=status)


def apply_plans(admin: KafkaAdmin, plans: Mapping[str, TopicPlan]) -> dict[str, Problem]:
    """Carry out the plans, with one request for each kind of action; returns the brokers' refusals."""
    refusals: dict[str, Refusal | None] = {}
    if create := [plan.create for plan in plans.values() if plan.create]:
        refusals.update(admin.create_topics(create))
    if changes := {name: plan.change for name, plan in plans.items() if plan.change}:
        refusals.update(admin.change_configs(changes))
    if totals := {name: plan.partitions for name, plan in plans.items() if plan.partitions}:
        refusals.update({name: no for name, no in admin.add_partitions(totals).items() if no})
    return {name: problem_of(no) for name, no in refusals.items() if no is not None}


def _delete(services: Parts, admin: KafkaAdmin, topics: Sequence[Topic]) -> Mapping[Key, float]:
    """Delete the topics of resources that are being deleted, if their policy says so, and release the resources.

    A resource that is restored while it is being deleted, or that acts late, deletes no topic that has the name since.
    """
    doomed = {topic.topic_name: topic for topic in topics if needs_cleanup(topic)}
    again: dict[Key, float] = {}
    failed: dict[str, str] = {}
    others: dict[str, str] = {}
    try:
        ids = {name: topic.status.topic_id for name, topic in doomed.items()}
        answers = admin.delete_topics(ids) if doomed else {}
        failed = {name: str(no) for name, no in answers.items() if no is not None and no.error not in GONE}
        gone = [name for name, no in answers.items() if no is not None and no.error == UNKNOWN_ID]
        there = admin.topics(gone) if gone else {}
        others = {name: found.topic_id for name, found in there.items() if found.topic_id != ids[name]}
    except AdminError as error:
        failed = {name: str(error) for name in doomed}
    for topic in topics:
        name = topic.topic_name
        is_doomed = doomed.get(name) is topic
        if is_doomed and name in failed:
            again[key_for(topic)] = wait(services, topic, _title(topic), failed[name])
            continue
        why = ""
        if is_doomed and name in others:
            why = f"this resource's had the id {topic.status.topic_id}, and the one of this name has {others[name]}"
        again[key_for(topic)] = release_resource(services, topic, _title(topic), why)
    return again


def _title(topic: Topic) -> str:
    return f"topic {topic.topic_name}"


def _report(
    services: Parts,
    topic: Topic,
    observed: TopicState | None,
    problem: Problem | None,
    *,
    beside: Sequence[NewCondition],
    config_changed: bool,
) -> float:
    if observed is None:
        if is_paused(topic):
            problem = Problem(
                Reason.RECONCILE_PAUSED, f"there is no such topic, and none is created: {PAUSED[-1]}"
            )
        # just created, and not in the brokers' metadata yet; or refused
        unseen = problem or Problem(Reason.CLUSTER_NOT_READY, "the topic is being created")
        return report_problem(services, topic, unseen, PROBLEM_INTERVAL_S if problem else 1.0)
    status = status_of(topic, observed, problem, beside, config_changed=config_changed, now=services.now())
    write_status(services, topic, status)
    if any(one[0] is ConditionType.REBALANCING for one in beside):
        return WAITING_INTERVAL_S
    return READY_INTERVAL_S if problem is None else PROBLEM_INTERVAL_S
