"""Topic: changes of the replication factor, by reassignments that the brokers carry out; pure.

Added replicas are spread evenly over the brokers; of removed ones, in-sync replicas go last, and of these the preferred
leader (reconcile/common/placement.py). A Topic that names no factor keeps its replicas. A partition that is being
reassigned counts as it will be afterwards. While every topic has its desired replicas, the brokers are not queried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...kafka.records import PartitionReplicas, Reassignments, TopicState
from ...models import Topic
from ...models.conditions import ConditionType, Reason
from ...models.problem import Problem
from ...models.words import count_of
from ..common.placement import CannotPlace, Moves, arrived, with_factor


@dataclass(slots=True)
class Replication:
    """``moves`` begin now; ``progress``, in words, and problems are by topic."""

    moves: Moves = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)


def plan_replication(
    factors: Mapping[str, int],
    partitions: Sequence[PartitionReplicas],
    reassigning: Reassignments,
    brokers: Collection[int],
    racks: Mapping[int, str] | None = None,
) -> Replication:
    """Plan the moves that bring topics to their replication ``factors``.

    ``partitions``: all of the cluster; ``reassigning``: see ``placement.arrived``.
    """
    plan = Replication()
    now = {(one.topic, one.partition): one for one in arrived(partitions, reassigning)}
    for factor in sorted(set(factors.values())):
        concerned = [one for one in now.values() if factors.get(one.topic) == factor]
        try:
            moves = with_factor(concerned, factor, brokers, now.values(), racks)
        except CannotPlace as error:
            problem = Problem(
                Reason.INVALID_REPLICATION_FACTOR,
                f"spec.replicationFactor: {factor} is not allowed: {error}",
            )
            changed = {one.topic for one in concerned if len(one.replicas) != factor}
            plan.problems.update(dict.fromkeys(sorted(changed), problem))
            continue
        plan.moves.update(moves)
        for key, replicas in moves.items():
            now[key] = replace(now[key], replicas=replicas)
    for topic in factors:
        count = sum(partition.topic == topic for partition in partitions)
        moving = {key for key in (*reassigning, *plan.moves) if key[0] == topic}
        copies = sum(len(going.adding) for key, going in reassigning.items() if key in moving)
        if moving:
            begun = f", {count_of(copies, 'replica')} to be copied" if copies else ""
            plan.progress[topic] = f"{len(moving)} of {count} partitions are being reassigned{begun}"
    return plan


def wanted_factors(topics: Sequence[Topic], observed: Mapping[str, TopicState]) -> dict[str, int]:
    """The factor by name of topics that do not have it, or that are being reassigned."""
    return {
        topic.topic_name: factor
        for topic in topics
        if (factor := topic.spec.replication_factor) is not None
        and (state := observed.get(topic.topic_name)) is not None
        and _concerns(topic, state, factor)
    }


def _concerns(topic: Topic, state: TopicState, factor: int) -> bool:
    moving = any(
        condition.type == ConditionType.REBALANCING.value for condition in topic.status.conditions or ()
    )
    return moving or not state.even or state.replication_factor != factor
