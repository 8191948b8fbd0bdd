"""Topic: create, adopt, change configuration, partitions and replicas; delete only when the policy says so.

One way: the resource says what the topic is to be. Anything it leaves out stays as it is: a topic that exists is
adopted with its partitions, replicas and configuration, and a key is reset only when this resource had set it
(``status.configKeys``). A new topic gets the brokers' defaults.

The Topics of one Cluster are looked at together, so that a hundred of them cost a handful of requests to its brokers.
Of two Topics that name one topic the older one has it; the other says so, and takes over when the older one is gone.
A Topic that is paused by its annotation is looked at and not changed; deleting it means what it always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..conditions import ConditionType, Reason
from ..kafka_admin import AdminError, ConfigChange, KafkaAdmin, NewTopic, Refusal, TopicState
from ..models import Cluster, Topic, TopicSpec, TopicStatus
from ..services import Services
from ..status import hold_finalizer, write_status
from ..store import Key, key_for
from .deletion import end_without, let_go, owes_deletion, wait
from .reference import cluster_key, find_cluster, rival
from .replication import Replication, replicate
from .report import PAUSED, Problem, conditions_with, is_paused, report_problem

READY_INTERVAL_S = 60.0
PROBLEM_INTERVAL_S = 30.0
WAITING_INTERVAL_S = 5.0

REASONS = {
    "INVALID_CONFIG": Reason.INVALID_CONFIG,
    "INVALID_REPLICATION_FACTOR": Reason.INVALID_REPLICATION_FACTOR,
    "INVALID_TOPIC": Reason.INVALID_TOPIC,
    "INVALID_TOPIC_EXCEPTION": Reason.INVALID_TOPIC,
    "INVALID_PARTITIONS": Reason.PARTITION_DECREASE_REFUSED,
}


Said = tuple[ConditionType, bool, Reason, str]
BESIDE_READY = (ConditionType.REBALANCING, ConditionType.WARNING, ConditionType.PAUSED)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do about a topic; empty when it is as it should be. ``problem``: what cannot be done."""

    create: NewTopic | None = None
    change: ConfigChange | None = None
    partitions: int | None = None  # the new total
    problem: Problem | None = None

    @property
    def empty(self) -> bool:
        return self.create is None and self.change is None and self.partitions is None


def plan_topic(
    name: str, spec: TopicSpec, observed: TopicState | None, config_keys: Iterable[str] = ()
) -> TopicPlan:
    """What brings a topic to its spec. ``config_keys``: the keys that this resource has set before."""
    if observed is None:
        return TopicPlan(create=NewTopic(name, spec.partitions, spec.replication_factor, dict(spec.config)))
    to_set = {key: value for key, value in spec.config.items() if observed.config.get(key) != value}
    to_reset = tuple(sorted(key for key in config_keys if key not in spec.config and key in observed.config))
    return TopicPlan(
        change=ConfigChange(to_set, to_reset) if to_set or to_reset else None,
        partitions=spec.partitions if (spec.partitions or 0) > observed.partitions else None,
        problem=_impossible(spec, observed),
    )


def _impossible(spec: TopicSpec, observed: TopicState) -> Problem | None:
    if spec.partitions is not None and spec.partitions < observed.partitions:
        return Problem(
            Reason.PARTITION_DECREASE_REFUSED,
            f"spec.partitions: {spec.partitions} is not allowed: the topic has {observed.partitions} partitions, and "
            "their number can only grow",
        )
    return None


def warning(spec: TopicSpec, cluster: Cluster, observed: TopicState | None = None) -> str:
    """What is allowed but hardly meant."""
    minimum = spec.config.get("min.insync.replicas", cluster.spec.config.get("min.insync.replicas", ""))
    factor = spec.replication_factor or (observed.replication_factor if observed is not None else None)
    if factor is None or not minimum.isdecimal() or int(minimum) <= factor:
        return ""
    return (
        f"min.insync.replicas is {minimum}, more than there are replicas: {factor} of {factor} must be in sync for "
        "acks=all, so that any restart of a broker makes producers wait"
    )


def reconcile_topics(services: Services, topics: Sequence[Topic]) -> Mapping[Key, float]:
    """One look at Topics of one Cluster; returns seconds until the next look by Topic."""
    again: dict[Key, float] = {}
    mine: list[Topic] = []
    cluster: Cluster | None = None
    for topic in topics:
        found = find_cluster(services, topic.namespace, topic.spec.cluster_ref)
        problem = found if isinstance(found, Problem) else conflict(services, topic, found)
        if isinstance(found, Cluster):
            cluster = found
        if problem is None:
            mine.append(topic)
        elif topic.metadata.deletion_timestamp is not None:
            again[key_for(topic)] = end_without(services, topic, _title(topic), problem)
        else:
            again[key_for(topic)] = report_problem(services, topic, problem, PROBLEM_INTERVAL_S)
    if cluster is not None:
        admin = services.admins.at(services.address_of(cluster))
        deleted = [topic for topic in mine if topic.metadata.deletion_timestamp is not None]
        wanted = [topic for topic in mine if topic.metadata.deletion_timestamp is None]
        again.update(_delete(services, admin, deleted))
        again.update(_bring_about(services, cluster, admin, wanted))
    return again


def conflict(services: Services, topic: Topic, cluster: Cluster) -> Problem | None:
    """Does an older Topic name the same topic?"""
    other = rival(
        services, topic, cluster, cluster_key(topic.namespace, topic.spec.cluster_ref), topic.topic_name
    )
    if other is None:
        return None
    return Problem(
        Reason.CONFLICTING_TOPIC,
        f"topic {topic.topic_name} of Cluster {cluster.name} belongs to the older Topic {other.name} "
        f"in namespace {other.namespace}",
    )


def _bring_about(
    services: Services, cluster: Cluster, admin: KafkaAdmin, topics: Sequence[Topic]
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
        for topic in active:
            plans[topic.topic_name] = plan_topic(
                topic.topic_name, topic.spec, observed.get(topic.topic_name), topic.status.config_keys or ()
            )
        refused = carry_out(admin, plans)
        if changed := [name for name, plan in plans.items() if not plan.empty]:
            observed = {**observed, **admin.topics(changed)}
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
            said=_said(topic, cluster, observed.get(topic.topic_name), replication),
            config_changed=topic.topic_name not in refused and topic in active,
        )
        for topic in topics
    }


def carry_out(admin: KafkaAdmin, plans: Mapping[str, TopicPlan]) -> dict[str, Problem]:
    """Do what the plans say, with one request for each kind of action; returns what the brokers refused."""
    refusals: dict[str, Refusal | None] = {}
    if create := [plan.create for plan in plans.values() if plan.create]:
        refusals.update(admin.create_topics(create))
    if changes := {name: plan.change for name, plan in plans.items() if plan.change}:
        refusals.update(admin.change_configs(changes))
    if totals := {name: plan.partitions for name, plan in plans.items() if plan.partitions}:
        refusals.update({name: no for name, no in admin.add_partitions(totals).items() if no})
    return {
        name: Problem(REASONS.get(no.error, Reason.REFUSED), str(no))
        for name, no in refusals.items()
        if no is not None
    }


def _delete(services: Services, admin: KafkaAdmin, topics: Sequence[Topic]) -> Mapping[Key, float]:
    """Delete the topics of resources that are being deleted, if their policy says so, and let the resources go."""
    doomed = [topic for topic in topics if owes_deletion(topic)]
    again: dict[Key, float] = {}
    failed: dict[str, str] = {}
    try:
        answers = admin.delete_topics([topic.topic_name for topic in doomed]) if doomed else {}
        failed = {
            name: str(no)
            for name, no in answers.items()
            if no is not None and no.error != "UNKNOWN_TOPIC_OR_PARTITION"
        }
    except AdminError as error:
        failed = {topic.topic_name: str(error) for topic in doomed}
    for topic in topics:
        why = failed.get(topic.topic_name)
        if why is not None and topic in doomed:
            again[key_for(topic)] = wait(services, topic, _title(topic), why)
        else:
            again[key_for(topic)] = let_go(services, topic, _title(topic))
    return again


def _title(topic: Topic) -> str:
    return f"topic {topic.topic_name}"


def _said(
    topic: Topic, cluster: Cluster, observed: TopicState | None, replication: Replication
) -> list[Said]:
    """The conditions beside Ready."""
    said: list[Said] = []
    if progress := replication.progress.get(topic.topic_name):
        said.append((ConditionType.REBALANCING, True, Reason.REASSIGNING, progress))
    if words := warning(topic.spec, cluster, observed):
        said.append((ConditionType.WARNING, True, Reason.MINIMUM_ISR, words))
    if is_paused(topic):
        said.append(PAUSED)
    return said


def _report(
    services: Services,
    topic: Topic,
    observed: TopicState | None,
    problem: Problem | None,
    *,
    said: Sequence[Said],
    config_changed: bool,
) -> float:
    if observed is None:
        if is_paused(topic):
            problem = Problem(Reason.RECONCILE_PAUSED, f"the topic is not there, and {PAUSED[-1]}")
        # created a moment ago, and not in the brokers' metadata yet; or refused
        unseen = problem or Problem(Reason.CLUSTER_NOT_READY, "the topic is being created")
        return report_problem(services, topic, unseen, PROBLEM_INTERVAL_S if problem else 1.0)
    kinds = {one[0] for one in said}
    gone = tuple(kind for kind in BESIDE_READY if kind not in kinds)
    status = TopicStatus(
        observed_generation=topic.metadata.generation,
        topic_id=observed.topic_id,
        partitions=observed.partitions,
        replication_factor=observed.replication_factor,
        under_replicated=observed.under_replicated,
        size_bytes=observed.size_bytes,
        config_keys=tuple(sorted(topic.spec.config)) if config_changed else topic.status.config_keys,
        conditions=conditions_with(topic, _ready(problem, observed), *said, now=services.now(), without=gone),
    )
    write_status(services, topic, status)
    if ConditionType.REBALANCING in kinds:
        return WAITING_INTERVAL_S
    return READY_INTERVAL_S if problem is None else PROBLEM_INTERVAL_S


def _ready(problem: Problem | None, observed: TopicState) -> tuple[ConditionType, bool, Reason, str]:
    if problem is not None:
        return ConditionType.READY, False, problem.reason, problem.message
    words = "1 partition" if observed.partitions == 1 else f"{observed.partitions} partitions"
    if observed.under_replicated:
        words += f", {observed.under_replicated} of them under-replicated"
    return ConditionType.READY, True, Reason.TOPIC_READY, words
