"""The number of brokers in the StatefulSet, and the replicas to move before or after it changes; pure.

Fewer brokers: those with the highest numbers leave. They stay until their replicas have moved to the others; if these
do not fit, the change is refused, with the reason. More brokers: they get leaders of new partitions, and with
`rebalance: Automatic` also replicas, once, while they have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...kafka.records import PartitionReplicas, Reassignments
from ...models.conditions import Reason
from ...models.problem import Problem
from ...models.words import count_of
from ..common.placement import CannotPlace, Moves, arrived, drain, rebalance


@dataclass(frozen=True, slots=True)
class Scaling:
    """``replicas``: of the StatefulSet for now; ``moves``: to begin now; ``progress``: in words."""

    replicas: int
    moves: Moves = field(default_factory=dict)
    progress: str = ""
    problem: Problem | None = None


def plan_scaling(
    desired: int,
    current: int | None,
    partitions: Sequence[PartitionReplicas] | None,
    reassigning: Reassignments,
    brokers: Mapping[int, str | None],
) -> Scaling:
    """``current``: brokers of the StatefulSet, None if it does not exist; ``partitions``: None if no broker answers;
    ``reassigning``: see ``placement.arrived``; ``brokers``: the live ones, with their racks."""
    stay = max(current or desired, desired)
    leaving = set(range(desired, stay))
    if partitions is not None:  # replicas on brokers that are gone must move too
        leaving |= {broker for partition in partitions for broker in partition.replicas if broker >= desired}
    if not leaving:
        return Scaling(desired)
    names = _named(leaving)
    if partitions is None:
        return Scaling(stay, progress=f"{names}: the brokers do not answer")
    held = [partition for partition in partitions if leaving & {*partition.replicas, *partition.isr}]
    if not held:
        return Scaling(desired)
    if missing := set(range(desired)) - set(brokers):
        waits = f"waiting for {_named(missing)} to take replicas"
        return Scaling(stay, progress=f"{names}: {waits}")
    racks = {broker: rack for broker, rack in brokers.items() if rack}
    try:
        moves = drain(arrived(partitions, reassigning), leaving, range(desired), racks)
    except CannotPlace as error:
        return Scaling(
            stay,
            problem=Problem(
                Reason.SCALE_DOWN_REFUSED,
                f"spec.brokers.replicas: {desired} is not allowed: {error}; {stay} brokers stay",
            ),
        )
    return Scaling(stay, moves, f"{names}: {count_of(len(held), 'partition')} left to move")


def confirm_scaling(scaling: Scaling, current: int, held: Mapping[int, int] | None) -> Scaling:
    """The same scaling if the live brokers that leave hold no replica; otherwise all brokers stay for now.

    ``held``: replicas by broker, as the brokers themselves report them, None if they do not answer. The plan relies on
    the metadata of any broker, which may not have heard of the newest partitions.
    """
    if held is None:
        return Scaling(current, progress="the brokers that leave do not say whether they hold replicas")
    if full := {broker: count for broker, count in sorted(held.items()) if count}:
        replicas = count_of(sum(full.values()), "replica")
        return Scaling(current, progress=f"{_named(full)}: {replicas} left to move")
    return scaling


def _named(brokers: Collection[int]) -> str:
    names = ", ".join(map(str, sorted(brokers)))
    return f"broker {names}" if len(brokers) == 1 else f"brokers {names}"


def plan_spreading(
    brokers: Collection[int],
    partitions: Sequence[PartitionReplicas],
    reassigning: Reassignments,
    racks: Mapping[int, str],
) -> Moves:
    """The moves to brokers that have no replicas yet; none while replicas are being reassigned."""
    used = {broker for partition in partitions for broker in partition.replicas}
    if reassigning or not set(brokers) - used:
        return {}
    return rebalance(partitions, brokers, racks)
