"""Partitions that are not mirrored at the moment: since when, why, and what to do. No I/O: the caller passes the time.

A partition waits while its task is not open yet, or after a failure until the task's next success. Most waits are over
within seconds: only those of at least LONG_S are a problem. Partitions that wait for a user's decision have a reason of
their own (partition_task.py), and are not here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..membership.member import TaskName
from .partition_task import PartitionTask, Side

LONG_S = 30.0
"""A broker that restarts, or another one that takes over, needs less."""
PARTITION_WAITING = "PartitionWaiting"
"""The condition's reason."""
NAMED = 5
"""Limit of partitions that a message names for each cause."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why partitions wait; ``side`` is empty if that is not known. ``words`` and ``remedy`` are for users."""

    side: Side
    words: str
    remedy: str


def no_topic(side: Side, topic: str) -> Cause:
    return Cause(
        side,
        f"topic {topic} does not exist in the {side}, or the mirror may not see it",
        f"create it, or give the mirror's user the right Describe in the {side}",
    )


def no_leader(side: Side) -> Cause:
    return Cause(side, f"no leader in the {side}", "start a broker that has an in-sync replica")


def not_reached(side: Side, node: int, error: Exception) -> Cause:
    return Cause(
        side,
        f"the leader in the {side}, broker {node}, does not respond ({error})",
        "check that broker, its advertised address, and the network between it and the workers",
    )


def failed(side: Side, error: str) -> Cause:
    where = f"the {side}" if side else "source and target"
    return Cause(side, error, f"read the log of the brokers of {where}, and of the worker")


POSITION_UNKNOWN = Cause("", "its position is not found yet", "read the worker's log")


def cause_of(task: PartitionTask) -> Cause | None:
    """Why an open task waits; None if it does not, or if it waits for a user's decision."""
    if task.reason or task.findings.replaced or task.gap is not None:
        return None
    if task.error:
        return failed(task.side, task.error)
    if task.has_failed or task.is_recovering:
        return POSITION_UNKNOWN
    return no_leader("source") if task.leader < 0 else None


class Waits:
    """The waits of one worker's partitions."""

    def __init__(self) -> None:
        self._waits: dict[TaskName, tuple[float, Cause]] = {}

    def observe(self, waiting: Mapping[TaskName, Cause], now: float) -> None:
        """Note which partitions wait now, in seconds of any clock; others wait no more."""
        self._waits = {
            name: (self._waits[name][0] if name in self._waits else now, cause)
            for name, cause in waiting.items()
        }

    def since(self, seconds: float, now: float) -> dict[TaskName, Cause]:
        """The partitions that have waited this long."""
        return {name: cause for name, (begun, cause) in self._waits.items() if now - begun >= seconds}


def messages(waiting: Mapping[TaskName, Cause]) -> list[str]:
    """A message for each cause, with the partitions that it holds up."""
    by_cause: dict[Cause, list[TaskName]] = {}
    for name, cause in waiting.items():
        by_cause.setdefault(cause, []).append(name)
    return [
        f"{named(names)}: {cause.words}: not mirrored for {LONG_S:.0f} seconds or longer: {cause.remedy}"
        for cause, names in by_cause.items()
    ]


def no_refresh(error: str) -> str:
    """The message for topics that are not brought to the target."""
    return (
        f"new topics and partitions: {error}: not mirrored for {LONG_S:.0f} seconds or longer: check the brokers of"
        " source and target, and the network between them and the workers"
    )


def named(names: Collection[TaskName]) -> str:
    """The first partitions, and how many more there are."""
    found = sorted((name.topic, name.partition) for name in names)
    more = len(found) - NAMED
    listed = ", ".join(f"{topic}-{partition}" for topic, partition in found[:NAMED])
    return listed + (f" and {more} more" if more > 0 else "")
