"""Topic: the plan for a topic, and its status; pure.

The resource decides, never the topic. Anything the resource leaves out stays as it is: an existing topic is adopted
with its partitions, replicas and configuration, and a key is reset only if this resource had set it
(``status.configKeys``). A new topic gets the brokers' defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from millstream_kafka.mirror_source import KEY, REJOIN

from ...kafka.records import OWNER, ConfigChange, NewTopic, Refusal, StrayLog, TopicState
from ...models import Cluster, Topic, TopicSpec, TopicStatus
from ...models.conditions import ConditionType, Reason
from ...models.config_values import changed
from ...models.problem import NewCondition, Problem, conditions_with
from ...models.words import count_of
from .replication import Replication

REASONS = {
    "INVALID_CONFIG": Reason.INVALID_CONFIG,
    "INVALID_REPLICATION_FACTOR": Reason.INVALID_REPLICATION_FACTOR,
    "INVALID_TOPIC": Reason.INVALID_TOPIC,
    "INVALID_TOPIC_EXCEPTION": Reason.INVALID_TOPIC,
    "INVALID_PARTITIONS": Reason.PARTITION_DECREASE_REFUSED,
}
BESIDE_READY = (ConditionType.REBALANCING, ConditionType.WARNING)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """Changes to a topic; empty if it is up to date. ``problem``: what cannot be done."""

    create: NewTopic | None = None
    change: ConfigChange | None = None
    partitions: int | None = None  # the new total
    problem: Problem | None = None

    @property
    def empty(self) -> bool:
        return self.create is None and self.change is None and self.partitions is None


def plan_topic(
    name: str,
    spec: TopicSpec,
    observed: TopicState | None,
    config_keys: Iterable[str] = (),
    strays: Collection[int] = (),
    lost: Collection[StrayLog] = (),
) -> TopicPlan:
    """Plan the changes that bring a topic to its spec. ``config_keys``: the keys that this resource has set before;
    ``strays``: the brokers that keep logs of the topic that it had, or of its name, although the cluster does not know
    it; ``lost``: the strays of partitions that the topic lacks."""
    if observed is None and strays:
        return TopicPlan(problem=_kept(name, strays))
    if is_replica(observed) and KEY not in {*spec.config, *config_keys}:  # else this resource has made it one
        return TopicPlan()
    if observed is None:
        return TopicPlan(create=NewTopic(name, spec.partitions, spec.replication_factor, dict(spec.config)))
    to_set = changed(spec.config, observed.config)
    to_reset = tuple(sorted(key for key in config_keys if key not in spec.config and key in observed.config))
    grows = (spec.partitions or 0) > observed.partitions
    return TopicPlan(
        change=ConfigChange(to_set, to_reset) if to_set or to_reset else None,
        partitions=spec.partitions if grows and not lost else None,
        problem=_lost(name, lost) if lost else fewer_partitions(spec.partitions, observed.partitions),
    )


def _lost(name: str, strays: Collection[StrayLog]) -> Problem:
    """Adding the partitions would truncate these logs to that of the broker that leads."""
    numbers = sorted({stray.partition for stray in strays})
    which = f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:5]))}"
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return Problem(
        Reason.STRAY_LOGS,
        f"the cluster has lost {which}{more} of topic {name}, and {_holders({one.broker for one in strays})} the"
        " records, as strays: restore the cluster's ZooKeeper, and they are its logs again; or copy the strays, remove"
        " them (millstream stray remove), and the partitions are added empty",
    )


def _holders(brokers: Collection[int]) -> str:
    names = ", ".join(map(str, sorted(brokers)))
    return f"broker {names} still has" if len(brokers) == 1 else f"brokers {names} still have"


def _kept(name: str, brokers: Collection[int]) -> Problem:
    return Problem(
        Reason.STRAY_LOGS,
        f"the cluster has lost topic {name}, and {_holders(brokers)} its records, as strays: restore the cluster's"
        " ZooKeeper, and they are its logs again; or remove the strays (millstream stray remove), and the topic is"
        " created empty",
    )


def is_replica(observed: TopicState | None) -> bool:
    """Whether a mirror keeps it as the read-only replica of a source's topic, with that topic's settings."""
    return observed is not None and bool(observed.config.get(KEY))


def claim(topic: Topic, observed: TopicState | None) -> ConfigChange | None:
    """The change that makes the topic's setting name this Topic; None if it does, cannot, or a mirror has the topic."""
    owner = f"{topic.namespace}/{topic.name}"
    if (
        observed is None
        or observed.owner in (None, owner)
        or is_replica(observed)
        or OWNER in topic.spec.config
    ):
        return None
    return ConfigChange({OWNER: owner}, ())


def fewer_partitions(wanted: int | None, there: int) -> Problem | None:
    """Why a topic cannot have ``wanted`` partitions, which are fewer than it has; None if it can."""
    if wanted is None or wanted >= there:
        return None
    return Problem(
        Reason.PARTITION_DECREASE_REFUSED,
        f"spec.partitions: {wanted} is not allowed: the topic has {there} partitions, and their number can only grow",
    )


def warning(spec: TopicSpec, cluster: Cluster, observed: TopicState | None = None) -> str:
    """A warning about settings that are allowed but probably a mistake; empty if there is none."""
    minimum = spec.config.get("min.insync.replicas", cluster.spec.config.get("min.insync.replicas", ""))
    factor = spec.replication_factor or (observed.replication_factor if observed is not None else None)
    if factor is None or not minimum.isdecimal() or int(minimum) <= factor:
        return ""
    return (
        f"min.insync.replicas is {minimum}, more than there are replicas: {factor} of {factor} must be in sync for "
        "acks=all, so that any restart of a broker makes producers wait"
    )


def problem_of(refusal: Refusal) -> Problem:
    """A refusal by the brokers, as a problem for the condition."""
    return Problem(REASONS.get(refusal.error, Reason.REFUSED), str(refusal))


def replaced(topic: Topic, observed: TopicState | None) -> str:
    """A warning that the topic is another one than the resource had; until the next change of the spec."""
    before = topic.status.topic_id
    if observed is not None and before and observed.topic_id != before:
        return (
            f"the topic was deleted and created again: its id was {before}, and is {observed.topic_id}; the former"
            " records are not in it. This warning stays until spec changes"
        )
    for condition in topic.status.conditions or ():
        is_warning = (
            condition.type == ConditionType.WARNING.value and condition.reason == Reason.TOPIC_REPLACED.value
        )
        if is_warning and condition.observed_generation == topic.metadata.generation:
            return condition.message
    return ""


def said(
    topic: Topic, cluster: Cluster, observed: TopicState | None, replication: Replication
) -> list[NewCondition]:
    """The conditions other than Ready."""
    said: list[NewCondition] = []
    if progress := replication.progress.get(topic.topic_name):
        said.append((ConditionType.REBALANCING, True, Reason.REASSIGNING, progress))
    if words := replaced(topic, observed):
        said.append((ConditionType.WARNING, True, Reason.TOPIC_REPLACED, words))
    elif not is_replica(observed) and (words := warning(topic.spec, cluster, observed)):
        said.append((ConditionType.WARNING, True, Reason.MINIMUM_ISR, words))
    return said


def status_of(
    topic: Topic,
    observed: TopicState,
    problem: Problem | None,
    said: Sequence[NewCondition],
    *,
    config_changed: bool,
    now: datetime,
) -> TopicStatus:
    """The resource's status. ``said``: the conditions other than Ready; ``config_changed``: whether the topic has the
    configuration of the spec."""
    kinds = {one[0] for one in said}
    factor = observed.replication_factor
    if ConditionType.REBALANCING in kinds and topic.status.replication_factor is not None:
        # the brokers count the replicas that are added and those that leave
        factor = topic.status.replication_factor
    gone = tuple(kind for kind in BESIDE_READY if kind not in kinds)
    return TopicStatus(
        observed_generation=topic.metadata.generation,
        topic_id=observed.topic_id,
        partitions=observed.partitions,
        replication_factor=factor,
        under_replicated=observed.under_replicated,
        size_bytes=observed.size_bytes,
        config_keys=tuple(sorted(topic.spec.config)) if config_changed else topic.status.config_keys,
        conditions=conditions_with(topic, _ready(problem, observed), *said, now=now, without=gone),
    )


def _ready(problem: Problem | None, observed: TopicState) -> NewCondition:
    if problem is not None:
        return ConditionType.READY, False, problem.reason, problem.message
    words = count_of(observed.partitions, "partition")
    if is_replica(observed):
        if observed.config[KEY].endswith(REJOIN):
            words += ", about to become a read-only replica by a MirrorMaker with spec.rejoin"
        else:
            words += (
                ", a read-only replica: its source decides partitions and configuration until a promotion"
            )
        return ConditionType.READY, True, Reason.READ_ONLY_REPLICA, words
    if observed.under_replicated:
        words += f", {observed.under_replicated} of them under-replicated"
    return ConditionType.READY, True, Reason.TOPIC_READY, words
